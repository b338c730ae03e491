package httpapi

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aenv/native/internal/envd/filesystem"
)

func TestMultipart(t *testing.T) {
	b := newBench(t)
	form := func(names ...string) (io.Reader, string) {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		_ = w.WriteField("other", "ignored")
		for _, name := range names {
			part, _ := w.CreateFormFile("file", name)
			_, _ = io.WriteString(part, "content of "+name)
		}
		_ = w.Close()
		// A reader of unknown length is sent chunked, as the JS SDK does.
		return io.MultiReader(&body), w.FormDataContentType()
	}
	names := []string{b.path("m/a/1.txt"), b.path("m/b/ü 2.txt")}
	body, kind := form(names...)
	got := b.do("POST", "/files", body, "Content-Type", kind)
	var written []map[string]any
	if err := json.Unmarshal([]byte(got.body), &written); err != nil || len(written) != 2 || len(written[1]) != 3 || written[1]["path"] != names[1] || written[1]["name"] != "ü 2.txt" {
		t.Fatalf("%+v", got)
	}
	for _, name := range names {
		if text, err := os.ReadFile(name); err != nil || string(text) != "content of "+name {
			t.Errorf("%s: %q %v", name, text, err)
		}
	}
	body, kind = form("ignored.txt")
	if got := b.do("POST", "/files?path="+url.QueryEscape(b.path("query.txt")), body, "Content-Type", kind); got.status != 200 || !strings.Contains(got.body, "query.txt") {
		t.Errorf("path by query: %+v", got)
	}
	for what, names := range map[string][]string{"twice": {names[0], names[0]}, "nothing": {}, "directory": {b.dir}} {
		body, kind := form(names...)
		if got := b.do("POST", "/files", body, "Content-Type", kind); got.status != 400 {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// FILE-10: owner is the acting user, the mode of an existing file stays.
func TestFILE10OwnerAndMode(t *testing.T) {
	b := newBench(t)
	script := b.path("script")
	if err := os.WriteFile(script, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{10, 3 << 20} {
		for _, path := range []string{script, b.path(fmt.Sprintf("new/%d", size))} {
			got := b.do("POST", "/files?username=nobody&path="+url.QueryEscape(path), bytes.NewReader(noise(size)), "Content-Type", "application/octet-stream")
			info, err := os.Stat(path)
			if got.status != 200 || err != nil {
				t.Fatalf("%+v %v", got, err)
			}
			want := os.FileMode(0o644)
			if path == script {
				want = 0o755
			}
			if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 65534 || info.Mode() != want || info.Size() != int64(size) {
				t.Errorf("%s: uid %d mode %v size %d", path, uid, info.Mode(), info.Size())
			}
		}
	}
}

// FILE-02: a reader sees one version or the other, whole, however the writes cross; links stay links.
func TestFILE02NoHalfReads(t *testing.T) {
	b := newBench(t)
	link := b.path("link")
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1 << 20, 3 << 20} {
		versions := [][]byte{bytes.Repeat([]byte("A"), size), bytes.Repeat([]byte("B"), size)}
		b.put(link, versions[0])
		stop := make(chan struct{})
		finished := make(chan struct{})
		for _, version := range versions {
			go func() {
				defer func() { finished <- struct{}{} }()
				for {
					select {
					case <-stop:
						return
					default:
						b.put(link, version)
					}
				}
			}()
		}
		for range 30 {
			if got := b.get(link); got.body != string(versions[0]) && got.body != string(versions[1]) {
				t.Errorf("a read of %d bytes is neither version", len(got.body))
			}
		}
		close(stop)
		<-finished
		<-finished
	}
	if target, err := os.Readlink(link); err != nil || target != "real" {
		t.Errorf("the link is gone: %v", err)
	}
}

// FILE-08: a link's ".." starts where its folder is, by whatever name the folder was reached.
func TestFILE08WritesThroughLinksInLinkedFolders(t *testing.T) {
	b := newBench(t)
	for _, err := range []error{
		os.MkdirAll(b.path("real/deep"), 0o755),
		os.Symlink("real/deep", b.path("short")),
		os.Symlink("../up", b.path("real/deep/up")),
		os.Symlink("short/../aside", b.path("aside")),
		os.Symlink("../missing/new", b.path("real/deep/new")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, behind := range map[string]string{"short/up": "real/up", "aside": "real/aside", "real/deep/new": "real/missing/new"} {
		b.put(b.path(path), []byte(path))
		if content, err := os.ReadFile(b.path(behind)); err != nil || string(content) != path {
			t.Errorf("%s: %q, %v", path, content, err)
		}
		if got := b.get(b.path(path)); got.body != path {
			t.Errorf("%s is read as %q", path, got.body)
		}
	}
}

// FILE-07: an upload that breaks off leaves the old file, or none, and no litter.
func TestFILE07AbortedUpload(t *testing.T) {
	b := newBench(t)
	if got := b.put(b.path("kept"), []byte("old")); got.status != 200 {
		t.Fatal(got)
	}
	for _, name := range []string{"kept", "fresh"} {
		conn, err := net.Dial("tcp", b.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", url.QueryEscape(b.path(name)), 64<<20)
		if _, err := conn.Write(noise(4 << 20)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		litter, _ := filepath.Glob(b.path(filesystem.TemporaryPrefix + "*"))
		if len(litter) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", litter)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if text, err := os.ReadFile(b.path("kept")); err != nil || string(text) != "old" {
		t.Errorf("the old file: %q %v", text, err)
	}
	if _, err := os.Stat(b.path("fresh")); err == nil {
		t.Error("half a new file is there")
	}
}

// RES-05: a full disk is 507, also in the middle of a body, and leaves nothing.
func TestRES05DiskFull(t *testing.T) {
	b := newBench(t)
	disk := b.path("disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatalf("cannot mount a small disk: %v", err)
	}
	defer syscall.Unmount(disk, 0)
	got := b.put(disk+"/big", noise(40<<20))
	if _, message := got.errorOf(t); got.status != 507 || !strings.Contains(message, "not enough space") {
		t.Errorf("%+v", got)
	}
	left, err := os.ReadDir(disk)
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

func TestUploadMetadata(t *testing.T) {
	b := newBench(t)
	got := b.put(b.path("f"), []byte("x"), "X-Metadata-Color", "red")
	if got.status != 200 || !strings.Contains(got.body, `"metadata":{"color":"red"}`) {
		t.Fatalf("%+v", got)
	}
	stat := func() string {
		return strings.ReplaceAll(b.do("POST", "/filesystem.Filesystem/Stat", strings.NewReader(`{"path":"`+b.path("f")+`"}`), "Content-Type", "application/json").body, " ", "")
	}
	if text := stat(); !strings.Contains(text, `"metadata":{"color":"red"}`) {
		t.Fatalf("no metadata (has the temporary directory extended attributes?): %s", text)
	}
	b.put(b.path("f"), []byte("x"))
	if text := stat(); strings.Contains(text, "color") {
		t.Errorf("metadata survives a write without: %s", text)
	}
}

// FILE-02: nor does a program in the sandbox, small or large files alike.
func TestFILE02NoHalfReadsInside(t *testing.T) {
	b := newBench(t)
	path := b.path("f")
	for _, size := range []int{10, 100_000, 2 << 20} {
		versions := [][]byte{bytes.Repeat([]byte("A"), size), bytes.Repeat([]byte("B"), size)}
		b.put(path, versions[0])
		stop, finished := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(finished)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					b.put(path, versions[i%2])
				}
			}
		}()
		for range 200 {
			text, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(text, versions[0]) && !bytes.Equal(text, versions[1]) {
				t.Fatalf("a read of %d bytes is neither version (%v)", len(text), err)
			}
		}
		close(stop)
		<-finished
	}
}

// What cannot be replaced is written in place: files of the kernel, mount points.
func TestFilesThatCannotBeReplaced(t *testing.T) {
	b := newBench(t)
	own := "/proc/self/oom_score_adj"
	before, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.put(own, before); got.status != 200 {
		t.Errorf("%s: %+v", own, got)
	}
	if got := b.get(own); got.status != 200 || got.body != string(before) {
		t.Errorf("%s: %+v", own, got)
	}
	for _, name := range []string{"source", "point"} {
		if err := os.WriteFile(b.path(name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mount(b.path("source"), b.path("point"), "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(b.path("point"), 0)
	content := noise(3 << 20)
	if got := b.put(b.path("point"), content); got.status != 200 {
		t.Errorf("mount point: %+v", got)
	}
	info, err := os.Stat(b.path("source"))
	text, _ := os.ReadFile(b.path("source"))
	if err != nil || !bytes.Equal(text, content) || info.Mode() != 0o600 {
		t.Errorf("the mounted file has %d bytes, mode %v, %v", len(text), info.Mode(), err)
	}
	if litter, _ := filepath.Glob(b.path(filesystem.TemporaryPrefix + "*")); len(litter) > 0 {
		t.Errorf("left: %v", litter)
	}
}

// A client that streams relies on the agent to give up what has stopped; one that is slow goes on. So it is with every
// route that takes files.
func TestAnUploadThatStopsIsGivenUp(t *testing.T) {
	b := newBench(t, impatient(300*time.Millisecond))
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	_ = out.WriteHeader(&tar.Header{Name: "unpacked-stuck", Typeflag: tar.TypeReg, Size: 10_000, Mode: 0o644})
	_, _ = out.Write(noise(10_000))
	_ = out.Close()
	for route, content := range map[string][]byte{
		"/files?path=" + url.QueryEscape(b.path("stuck")): []byte("abcabcabcabcabc"),
		"/archive?path=" + url.QueryEscape(b.dir):         packed.Bytes(),
	} {
		send := func(last bool) answer {
			body, client := io.Pipe()
			go func() {
				for i := range 5 {
					_, _ = client.Write(content[i*len(content)/5 : (i+1)*len(content)/5])
					if i == 3 && !last {
						return
					}
					time.Sleep(100 * time.Millisecond)
				}
				client.Close()
			}()
			defer client.Close()
			defer time.AfterFunc(10*time.Second, func() { client.CloseWithError(errors.New("it was not given up")) }).Stop()
			return b.do("POST", route, body, "Content-Type", "application/octet-stream")
		}
		got := send(false)
		if _, message := got.errorOf(t); got.status != 408 || !strings.Contains(message, "stopped") {
			t.Errorf("%s, stuck: %+v", route, got)
		}
		if left, _ := os.ReadDir(b.dir); len(left) > 0 {
			t.Errorf("%s left: %v", route, left)
		}
		// One that is slow, over all much longer than the limit.
		if got := send(true); got.status != 200 {
			t.Errorf("%s, slow: %+v", route, got)
		}
		if err := errors.Join(os.RemoveAll(b.path("stuck")), os.RemoveAll(b.path("unpacked-stuck"))); err != nil {
			t.Fatal(err)
		}
	}
}

// A pipe that somebody reads is fed as the body comes; one whose reader stops is given up.
func TestAPipeIsFed(t *testing.T) {
	b := newBench(t)
	if err := syscall.Mkfifo(b.path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(b.path("pipe"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	content, got := noise(1<<20), make([]byte, 1<<20)
	finished := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(reader, got)
		finished <- err
	}()
	if answer := b.put(b.path("pipe"), content); answer.status != 200 {
		t.Fatalf("%+v", answer)
	}
	if err := <-finished; err != nil || !bytes.Equal(got, content) {
		t.Errorf("other bytes came through (%v)", err)
	}
	hasty := newBench(t, impatient(100*time.Millisecond))
	if answer := hasty.put(b.path("pipe"), content); answer.status != 400 || !strings.Contains(answer.body, "nobody reads") {
		t.Errorf("a reader that stops: %+v", answer)
	}
}
