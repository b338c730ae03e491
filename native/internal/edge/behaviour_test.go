package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// raw answers with bytes of a test's own, and leaves the connection to it.
func raw(t *testing.T, w http.ResponseWriter, answer string) net.Conn {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return nil
	}
	if _, err := io.WriteString(conn, answer); err != nil {
		t.Log(err)
	}
	return conn
}

// A service may close a connection behind each of its answers without a word. What cannot be sent twice must not go there then.
func TestRequestsThatAreSentOnceDoNotMeetAConnectionThatIsBeingClosed(t *testing.T) {
	w := open(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if conn := raw(t, w, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); conn != nil {
			_ = conn.Close()
		}
	})
	for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete, http.MethodGet} {
		for _, body := range []string{"", "abc"} {
			for range 40 {
				answer, said, err := w.ask(t.Context(), http.DefaultClient, method, "/", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if answer.StatusCode != 200 || said != "ok" {
					t.Fatalf("%s %q: %d %q", method, body, answer.StatusCode, said)
				}
			}
		}
	}
}

func TestAServiceThatKeepsItsConnectionsOpenGetsPOSTsOnThem(t *testing.T) {
	var connections atomic.Int32
	w := open(t, func(http.ResponseWriter, *http.Request) {})
	service := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	service.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	service.Start()
	w.service.Close()
	w.service = service
	// At first one cannot know.
	for calm := 0; calm < 100; {
		before := connections.Load()
		if _, _, err := w.ask(t.Context(), http.DefaultClient, http.MethodPost, "/", strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		calm++
		if connections.Load() != before {
			calm = 0
		}
		if connections.Load() > 1000 {
			t.Fatal("each of a thousand requests has a connection of its own")
		}
	}
}

// The head of a request whose body comes later is what many services begin to work on.
func TestAHeadDoesNotWaitForItsBody(t *testing.T) {
	heads := make(chan struct{}, 1)
	w := open(t, func(_ http.ResponseWriter, r *http.Request) {
		heads <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	quickest := time.Hour
	for range 5 {
		conn := w.dial(t)
		sentAt := time.Now()
		if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 5\r\n\r\n", w.host()); err != nil {
			t.Fatal(err)
		}
		<-heads
		quickest = min(quickest, time.Since(sentAt))
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		if answer, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || answer.StatusCode != 200 {
			t.Fatal(answer, err)
		}
		_ = conn.Close()
	}
	// The kernel holds it for 200 ms.
	if quickest > 150*time.Millisecond {
		t.Errorf("a head takes %v", quickest)
	}
}

func TestInterimAnswersAreNotForHTTP10(t *testing.T) {
	w := open(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "done")
	})
	for version, interim := range map[string]int{"1.0": 0, "1.1": 1} {
		said := w.say(t, "GET / HTTP/"+version+"\r\nHost: "+w.host()+"\r\nConnection: close\r\n\r\n")
		if strings.Count(said, " 103 ") != interim || !strings.HasSuffix(said, "done") {
			t.Errorf("HTTP/%s: %q", version, said)
		}
	}
}

// Neither 0, which would be that of another answer, nor what a client would wait for.
func TestAnswersWithoutABodyHaveNoLength(t *testing.T) {
	answers := map[string]string{
		"/said":   "HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n",
		"/unsaid": "HTTP/1.1 304 Not Modified\r\nEtag: \"x\"\r\n\r\n",
		"/none":   "HTTP/1.1 204 No Content\r\n\r\n",
	}
	w := open(t, func(w http.ResponseWriter, r *http.Request) {
		if conn := raw(t, w, answers[r.URL.Path]); conn != nil {
			_ = conn.Close()
		}
	})
	client := clientOfHTTP2(t)
	for path := range answers {
		answer, _, err := w.ask(t.Context(), client, http.MethodGet, path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, isSaid := answer.Header["Content-Length"]; answer.ProtoMajor != 2 || isSaid {
			t.Errorf("%s by %s has %q", path, answer.Proto, got)
		}
	}
}

func TestAnswersOfTheEdgesOwnHaveNoEmptyFrames(t *testing.T) {
	w := open(t, func(http.ResponseWriter, *http.Request) {})
	w.service.Close()
	seen := w.frames(t, "/")
	for _, frame := range seen {
		if frame.kind == dataFrame && frame.length == 0 {
			t.Errorf("%v", seen)
		}
	}
}

// An offer of another protocol may be ignored (RFC 9110, 7.8): the request is one as any other.
func TestTheAPIIgnoresOffersOfOtherProtocols(t *testing.T) {
	w := open(t, func(http.ResponseWriter, *http.Request) {})
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", w.apiSocket)
	if err != nil {
		t.Fatal(err)
	}
	api := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %q %q", r.URL.Path, r.Header.Get("Upgrade"), body)
	})}
	go func() { _ = api.Serve(listener) }()
	t.Cleanup(func() { _ = api.Close() })
	said := w.say(t, "POST /sandboxes HTTP/1.1\r\nHost: api.e2b.test\r\nConnection: Upgrade, close\r\nUpgrade: TLS/1.2\r\nContent-Length: 2\r\n\r\n{}")
	if !strings.HasPrefix(said, "HTTP/1.1 200 ") || !strings.HasSuffix(said, `/sandboxes "" "{}"`) {
		t.Errorf("%q", said)
	}
}
