package httpapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A client that takes nothing holds a goroutine and a buffer: it is given up, one that is slow is not. So it is with every route
// that gives files, by each protocol.
func TestADownloadThatStopsIsGivenUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "large")
	// Noise, which gzip does not make smaller.
	if err := os.WriteFile(file, noise(downloadBytes), 0o644); err != nil {
		t.Fatal(err)
	}
	path := url.QueryEscape(file)
	for _, c := range []struct{ name, target, accept string }{
		{"file", "/files?path=" + path, "identity"},
		{"gzip", "/files?path=" + path, "gzip"},
		{"archive", "/archive?path=" + path, ""},
	} {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(c.name+" by "+protocol, func(t *testing.T) {
				t.Parallel()
				stopInDownload(t, protocol, c.target, c.accept)
			})
		}
	}
}

// downloadBytes are more than what connections buffer.
const downloadBytes = 32 << 20

func stopInDownload(t *testing.T, protocol, target, accept string) {
	const piece = 1 << 20
	ended := make(chan struct{}, 2)
	b := newBench(t, impatient(500*time.Millisecond), func(b *bench) {
		inner := b.server.Config.Handler
		b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { ended <- struct{}{} }()
			inner.ServeHTTP(w, r)
		})
	})
	stuck := b.open(protocol, target, accept)
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("a client that takes nothing is not given up")
	}
	if n, err := io.Copy(io.Discard, stuck); err == nil || n >= downloadBytes {
		t.Errorf("%d bytes came, %v", n, err)
	}
	slow := b.open(protocol, target, accept)
	for got := int64(0); got < downloadBytes; {
		// Over all much longer than the limit.
		time.Sleep(2 * b.api.files.idle * piece / downloadBytes)
		n, err := io.CopyN(io.Discard, slow, piece)
		if got += n; err != nil {
			t.Fatalf("one that is slow is given up after %d bytes: %v", got, err)
		}
	}
}

// open asks for something and reads none of it.
func (b *bench) open(protocol, target, accept string) io.Reader {
	b.t.Helper()
	transport := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(protocol == "HTTP/1.1")
	transport.Protocols.SetUnencryptedHTTP2(protocol != "HTTP/1.1")
	request, err := http.NewRequest("GET", b.server.URL+target, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header.Set("Accept-Encoding", accept)
	answer, err := transport.RoundTrip(request)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		answer.Body.Close()
		transport.CloseIdleConnections()
	})
	if answer.StatusCode != 200 || answer.Proto != protocol {
		b.t.Fatalf("%s %s: %s", answer.Proto, target, answer.Status)
	}
	return answer.Body
}

// The limit of a download is no limit of what comes after it on the same connection.
func TestADownloadLeavesNoDeadline(t *testing.T) {
	b := newBench(t, impatient(50*time.Millisecond))
	if err := os.WriteFile(b.path("small"), []byte("small"), 0o644); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", b.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for _, target := range []string{"/files?path=" + url.QueryEscape(b.path("small")), "/envs"} {
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", target)
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		time.Sleep(2 * b.api.files.idle)
	}
}

func TestGzipIsForWhoAsksForIt(t *testing.T) {
	b := newBench(t)
	if err := os.WriteFile(b.path("f"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for accept, want := range map[string]string{
		"gzip": "gzip", "gzip;q=0.1": "gzip", "GZIP; q=1.0, identity": "gzip", "gzip;q=": "gzip",
		"gzip;q=0": "", "gzip;q=0.0": "", "gzip ; Q=0.000": "", "identity, gzip;q=0.": "", "gzip, deflate": "",
	} {
		if got := b.get(b.path("f"), "Accept-Encoding", accept); got.status != 200 || got.header.Get("Content-Encoding") != want {
			t.Errorf("%s: %d, %q", accept, got.status, got.header.Get("Content-Encoding"))
		}
	}
}
