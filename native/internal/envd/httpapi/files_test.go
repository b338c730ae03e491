package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) put(path string, content []byte, headers ...string) answer {
	b.t.Helper()
	headers = append([]string{"Content-Type", "application/octet-stream"}, headers...)
	return b.do("POST", "/files?path="+url.QueryEscape(path), bytes.NewReader(content), headers...)
}

func (b *bench) get(path string, headers ...string) answer {
	b.t.Helper()
	return b.do("GET", "/files?path="+url.QueryEscape(path), nil, headers...)
}

func zipped(content []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(content)
	_ = w.Close()
	return out.Bytes()
}

func noise(size int) []byte {
	content := make([]byte, size)
	_, _ = rand.Read(content)
	return content
}

// A small file that a program cuts to nothing and writes anew all the time is read whole, in what length it has right then,
// never as an answer that ends before its length.
func TestAFileThatIsWrittenAnewIsReadWhole(t *testing.T) {
	b := newBench(t)
	path := b.path("counter")
	content := bytes.Repeat([]byte("7"), wholeBytes)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(path, content, 0o644)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for range 2000 {
		got := b.get(path, "Accept-Encoding", "identity")
		if got.status != http.StatusOK || strings.Trim(got.body, "7") != "" {
			t.Fatalf("%d, %d bytes", got.status, len(got.body))
		}
	}
}

func TestSignatureVector(t *testing.T) {
	if got := sign("hello.txt", "read", "user", "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", "", false); got != "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E" {
		t.Fatal(got)
	}
}

// FILE-04: the signature binds path, user, operation, expiry; 0 is in the past.
func TestFILE04Signatures(t *testing.T) {
	const token = "tok"
	now := time.Unix(1_000_000, 0)
	signed := func(path, operation, user, expiration string) url.Values {
		query := url.Values{"path": {path}}
		if user != "" {
			query.Set("username", user)
		}
		if expiration != "" {
			query.Set("signature_expiration", expiration)
		}
		query.Set("signature", sign(path, operation, user, token, expiration, expiration != ""))
		return query
	}
	with := func(query url.Values, key, value string) url.Values {
		query.Set(key, value)
		return query
	}
	for _, c := range []struct {
		query     url.Values
		operation string
		want      error
	}{
		{signed("a", "read", "", ""), "read", nil},
		{signed("a", "write", "root", "2000000"), "write", nil},
		{signed("a", "read", "", "0"), "read", errSignatureExpired},
		{signed("a", "read", "", "999999"), "read", errSignatureExpired},
		{signed("a", "read", "", "x"), "read", errSignatureInvalid},
		{signed("a", "read", "", ""), "write", errSignatureInvalid},
		{with(signed("a", "read", "", ""), "path", "b"), "read", errSignatureInvalid},
		{with(signed("a", "read", "", ""), "username", "root"), "read", errSignatureInvalid},
		{with(signed("a", "read", "", "999999"), "signature_expiration", "2000000"), "read", errSignatureInvalid},
		{url.Values{"path": {"a"}}, "read", errSignatureMissing},
	} {
		request := &http.Request{URL: &url.URL{RawQuery: c.query.Encode()}, Header: http.Header{}}
		if got := checkFileAccess(request, token, c.operation, now); got != c.want {
			t.Errorf("%v for %s: %v, want %v", c.query, c.operation, got, c.want)
		}
		request.Header.Set("X-Access-Token", "wrong")
		if got := checkFileAccess(request, token, c.operation, now); got != errToken {
			t.Errorf("a wrong token passes: %v", got)
		}
	}
}

// FILE-11: bytes come back as they went in, by every way.
func TestFILE11Content(t *testing.T) {
	b := newBench(t)
	for name, content := range map[string][]byte{
		"noise": noise(5 << 20), "small": noise(70_000), "empty": {}, "nuls": make([]byte, 4096), "bom": []byte("\xef\xbb\xbftext"),
	} {
		path := b.path("new/" + name)
		if got := b.put(path, content); got.status != 200 || got.body != fmt.Sprintf(`[{"name":%q,"path":%q,"type":"file"}]`, name, path) {
			t.Fatalf("%s: %.200v", name, got)
		}
		got := b.get(path)
		if got.status != 200 || got.body != string(content) || got.header.Get("Content-Length") != fmt.Sprint(len(content)) {
			t.Errorf("%s: %d, %d bytes, length %s", name, got.status, len(got.body), got.header.Get("Content-Length"))
		}
		if got := b.put(path+".gz", zipped(content), "Content-Encoding", "gzip"); got.status != 200 {
			t.Errorf("%s by gzip: %.200v", name, got)
		}
		got = b.get(path+".gz", "Accept-Encoding", "gzip")
		if got.header.Get("Content-Encoding") == "gzip" {
			r, err := gzip.NewReader(strings.NewReader(got.body))
			if err != nil {
				t.Fatal(err)
			}
			plain, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(plain, content) {
				t.Errorf("%s: gzip differs, %v", name, err)
			}
		} else if len(content) > 0 {
			t.Errorf("%s was not compressed", name)
		}
		if len(content) > 10 {
			got = b.get(path, "Range", "bytes=2-5")
			if got.status != 206 || got.body != string(content[2:6]) {
				t.Errorf("%s by range: %d %q", name, got.status, got.body)
			}
		}
	}
	if got := b.get("/proc/version"); got.status != 200 || len(got.body) == 0 {
		t.Errorf("a file of the kernel: %+v", got)
	}
}

func TestRefusals(t *testing.T) {
	b := newBench(t)
	if err := syscall.Mkfifo(b.path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", b.path("loop")); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		got    answer
		status int
		text   string
	}{
		"missing":       {b.get(b.path("no")), 404, "path '" + b.path("no") + "' does not exist"},
		"directory":     {b.get(b.dir), 400, "is a directory"},
		"pipe":          {b.get(b.path("pipe")), 400, "is not a regular file"},
		"unread pipe":   {b.put(b.path("pipe"), []byte("x")), 400, "that nobody reads"},
		"loop":          {b.get(b.path("loop")), 400, "loop"},
		"unknown user":  {b.do("GET", "/files?path=x&username=ghost", nil), 401, "invalid username: 'ghost'"},
		"no path":       {b.do("POST", "/files", strings.NewReader("x"), "Content-Type", "application/octet-stream"), 400, "'path' is required"},
		"coding":        {b.put(b.path("x"), nil, "Content-Encoding", "br"), 415, "br"},
		"bad gzip":      {b.put(b.path("x"), []byte("plain"), "Content-Encoding", "gzip"), 400, "not gzip"},
		"bad metadata":  {b.put(b.path("x"), nil, "X-Metadata-A", "ü"), 400, "printable"},
		"below a file":  {b.put("/etc/passwd/x", nil), 400, "not a directory"},
		"wrong method":  {b.do("PUT", "/files", nil), 405, "GET and POST"},
		"no media type": {b.do("POST", "/files?path=x", nil), 400, "Content-Type"},
	} {
		if _, message := c.got.errorOf(t); c.got.status != c.status || !strings.Contains(message, c.text) {
			t.Errorf("%s: %d %q", what, c.got.status, message)
		}
	}
	if _, err := os.Stat(b.path("x")); err == nil {
		t.Error("a refused upload left a file")
	}
}
