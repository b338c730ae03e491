package edge

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// told are trailers of all kinds. Of them only Sum and Grpc-Status may go on.
const told = "Sum: 1\r\nGrpc-Status: 0\r\nConnection: close\r\nKeep-Alive: timeout=1\r\nUpgrade: h2c\r\nHost: elsewhere\r\n" +
	"Authorization: x\r\nTe: trailers\r\nProxy-Connection: close\r\nHttp2-Settings: x\r\nExpect: 100-continue\r\n" +
	"E2b-Sandbox-Id: " + sandboxID + "\r\nX-Aenv-Peer: 127.0.0.1\r\n"

func TestTrailersSayNothingAboutConnectionsFramingOrRoutes(t *testing.T) {
	seen := make(chan *http.Request, 1)
	w := openToBoth(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r
		for line := range strings.SplitSeq(strings.TrimSpace(told), "\r\n") {
			name, value, _ := strings.Cut(line, ": ")
			w.Header().Set(http.TrailerPrefix+name, value)
		}
		_, _ = io.WriteString(w, "x")
		_ = http.NewResponseController(w).Flush()
	})
	request := func(host, more string) string {
		return "POST / HTTP/1.1\r\nHost: " + host + "\r\n" + more + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\n" + told + "\r\n"
	}
	for _, announced := range []string{"", "Trailer: Sum, Connection, Te, Host\r\n"} {
		said := w.say(t, request(w.host(), announced))
		got := (<-seen).Trailer
		// X-Aenv-Peer is nothing to what runs in a sandbox.
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"Grpc-Status", "Sum", "X-Aenv-Peer"}) || got.Get("Sum") != "1" {
			t.Errorf("%q: the service got the trailers %v", announced, got)
		}
		head, end, _ := strings.Cut(said, "\r\n1\r\nx\r\n0\r\n")
		for _, name := range []string{"Sum", "Grpc-Status"} {
			if !strings.Contains(end, name+": ") {
				t.Errorf("the client got no trailer %s: %q", name, said)
			}
		}
		for _, name := range []string{"Connection", "Keep-Alive", "Upgrade", "Host", "Te", "Proxy-Connection", "Http2-Settings", "Expect", "Authorization"} {
			if strings.Contains(end, "\n"+name+": ") || strings.HasPrefix(end, name+": ") || strings.Contains(head, "Trailer: "+name) {
				t.Errorf("the client got the trailer %s: %q", name, said)
			}
		}
		w.say(t, request("api", announced))
		if got := (<-seen).Trailer; len(got) > 0 {
			t.Errorf("%q: the API got the trailers %v", announced, got)
		}
	}
}

func TestTrailersOfHTTP2StreamsAreTheSame(t *testing.T) {
	seen := make(chan *http.Request, 1)
	w := openToBoth(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		seen <- r
		w.Header().Set(http.TrailerPrefix+"Sum", "2")
		w.Header().Set(http.TrailerPrefix+"Connection", "close")
		_, _ = io.WriteString(w, "x")
	})
	c := w.http2(t)
	for at, host := range []string{w.host(), "api"} {
		stream := uint32(2*at + 1)
		c.head(t, stream, false, ":method", "POST", ":scheme", "http", ":path", "/", ":authority", host, "trailer", "sum, connection, e2b-sandbox-id")
		c.must(t, c.framer.WriteData(stream, false, []byte("x")))
		c.head(t, stream, true, "sum", "1", "e2b-sandbox-id", sandboxID)
		status, trailer := c.answer(t, stream)
		if status != 200 || trailer.Get("Sum") != "2" || trailer.Get("Connection") != "" {
			t.Errorf("%s: %d %v", host, status, trailer)
		}
		got := (<-seen).Trailer
		if isAPI := host == "api"; isAPI && len(got) > 0 || !isAPI && (len(got) != 1 || got.Get("Sum") != "1") {
			t.Errorf("%s got the trailers %v", host, got)
		}
	}
}

func TestInterimAnswersSayNothingAboutConnections(t *testing.T) {
	w := openToBoth(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a>")
		w.Header().Set("Connection", "X-Named")
		w.Header().Set("X-Named", "1")
		w.WriteHeader(http.StatusEarlyHints)
		clear(w.Header())
	})
	said := w.say(t, "GET / HTTP/1.1\r\nHost: "+w.host()+"\r\nConnection: close\r\n\r\n")
	interim, _, _ := strings.Cut(said, "\r\n\r\n")
	if !strings.HasPrefix(interim, "HTTP/1.1 103 ") || !strings.Contains(interim, "Link: </a>") || strings.Contains(interim, "Connection") || strings.Contains(interim, "X-Named") {
		t.Errorf("%q", said)
	}
}
