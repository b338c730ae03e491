package httpapi

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aenv/native/internal/envd/filesystem"
)

func TestArchiveGoesOutAndIn(t *testing.T) {
	b := newBench(t)
	from, to := filepath.Join(b.dir, "from"), filepath.Join(b.dir, "to")
	for _, folder := range []string{from, to} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(from, "run"), []byte("#!"), 0o755); err != nil {
		t.Fatal(err)
	}
	at := func(path string) string { return "/archive?path=" + url.QueryEscape(path) }
	packed := b.do("GET", at(from), nil)
	if packed.status != 200 || packed.header.Get("Content-Type") != "application/x-tar" {
		t.Fatalf("%+v", packed)
	}
	// As a client that does not know the length.
	if got := b.do("POST", at(to), io.MultiReader(strings.NewReader(packed.body))); got.status != 200 || got.body != `{"files":1,"bytes":2}` {
		t.Errorf("%+v", got)
	}
	if info, err := os.Stat(filepath.Join(to, "run")); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v %v", info, err)
	}
	for what, c := range map[string]struct {
		method, path, body string
		status             int
		text               string
	}{
		"nothing there":    {"GET", at(b.dir + "/none"), "", 404, "does not exist"},
		"no folder there":  {"POST", at(b.dir + "/none"), packed.body, 404, "does not exist"},
		"into a file":      {"POST", at(to + "/run"), packed.body, 400, "run"},
		"no archive":       {"POST", at(to), strings.Repeat("x", 2000), 400, "tar"},
		"cut":              {"POST", at(to), packed.body[:1025], 400, "ended early"},
		"unknown user":     {"GET", at(from) + "&username=nobody-of-this-name", "", 401, "invalid username"},
		"a NUL in it":      {"GET", "/archive?path=%00", "", 400, "NUL"},
		"another method":   {"DELETE", at(from), "", 405, "GET and POST"},
		"a file in a file": {"GET", at(from + "/run/x"), "", 400, "run/x"},
	} {
		if got := b.do(c.method, c.path, strings.NewReader(c.body)); got.status != c.status || !strings.Contains(got.body, c.text) {
			t.Errorf("%s: %+v", what, got)
		}
	}
	b.init(`{"accessToken":"secret"}`)
	if got := b.do("GET", at(from), nil); got.status != 401 {
		t.Errorf("without the token: %+v", got)
	}
}

func TestTunnelAsksForTheAccessToken(t *testing.T) {
	b := newBench(t)
	port := service(t, "127.0.0.1", echo)
	b.init(`{"accessToken":"secret","initKey":"k1"}`)
	for token, status := range map[string]int{"secret": 101, "": 401, "k1": 401} {
		_, _, res := b.request("/tunnel", port, "X-Access-Token", token, "")
		if res.StatusCode != status {
			t.Errorf("with %q: %v", token, res)
		}
	}
	conn, in, _ := b.request("/tunnel", port, "X-Access-Token", "secret", "early ")
	_, _ = conn.Write([]byte("late"))
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(in); err != nil || string(got) != "early late" {
		t.Errorf("%q %v", got, err)
	}
}

// What is being written is hidden, whichever route it comes by: from lists, from watchers, from archives.
func TestWhatIsBeingWrittenIsHidden(t *testing.T) {
	b := newBench(t)
	b.put(b.path("old"), []byte("x"))
	if err := os.Mkdir(b.path("sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	call := func(procedure, message string) string {
		t.Helper()
		got := b.do("POST", "/filesystem.Filesystem/"+procedure, strings.NewReader(message), "Content-Type", "application/json")
		if got.status != 200 {
			t.Fatalf("%s: %+v", procedure, got)
		}
		return got.body
	}
	var watcher struct{ WatcherID string }
	if err := json.Unmarshal([]byte(call("CreateWatcher", fmt.Sprintf(`{"path":%q,"recursive":true}`, b.dir))), &watcher); err != nil {
		t.Fatal(err)
	}
	body, client := io.Pipe()
	defer client.Close()
	answered := make(chan answer, 1)
	go func() { answered <- b.do("POST", "/archive?path="+url.QueryEscape(b.dir), body) }()
	out := tar.NewWriter(client)
	send := func(header tar.Header, content string) {
		header.Mode, header.Size = 0o644, int64(len(content))
		if err := out.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(out, content)
	}
	for _, name := range []string{"sub/link", "sub/new", "old"} {
		if strings.HasSuffix(name, "link") {
			send(tar.Header{Name: name, Linkname: "new", Typeflag: tar.TypeSymlink}, "")
		} else {
			send(tar.Header{Name: name, Typeflag: tar.TypeReg}, strings.Repeat("y", 100_000))
		}
	}
	// The last file is never whole.
	if err := out.WriteHeader(&tar.Header{Name: "half", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1000}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(out, "begin")
	for i := 0; ; i++ {
		if hidden, _ := filepath.Glob(b.path(filesystem.TemporaryPrefix + "*")); len(hidden) == 1 {
			break
		}
		if i == 500 {
			names, _ := os.ReadDir(b.dir)
			t.Fatalf("no file is being written: %v", names)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if list := call("ListDir", fmt.Sprintf(`{"path":%q,"depth":3}`, b.dir)); strings.Contains(list, ".aenv") || !strings.Contains(list, "sub/new") {
		t.Errorf("the list: %s", list)
	}
	if packed := b.do("GET", "/archive?path="+url.QueryEscape(b.dir), nil); strings.Contains(packed.body, ".aenv") || !strings.Contains(packed.body, "sub/new") {
		t.Errorf("an archive of %d bytes shows it", len(packed.body))
	}
	client.Close()
	if got := <-answered; got.status != 400 {
		t.Errorf("%+v", got)
	}
	events := call("GetWatcherEvents", fmt.Sprintf(`{"watcherId":%q}`, watcher.WatcherID))
	want := map[string]string{"old": "CHMOD WRITE", "sub/link": "CREATE CHMOD WRITE", "sub/new": "CREATE CHMOD WRITE"}
	got := map[string]string{}
	var read struct{ Events []struct{ Name, Type string } }
	if err := json.Unmarshal([]byte(events), &read); err != nil {
		t.Fatal(err)
	}
	for _, event := range read.Events {
		got[event.Name] = strings.TrimSpace(got[event.Name] + " " + strings.TrimPrefix(event.Type, "EVENT_TYPE_"))
	}
	if !maps.Equal(got, want) {
		t.Errorf("events: %v", got)
	}
}
