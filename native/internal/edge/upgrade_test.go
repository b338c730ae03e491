package edge

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"aenv/native/internal/edge/forward"
	"aenv/native/internal/edge/upstream"
)

const upgradeHead = "Connection: Upgrade\r\nUpgrade: tcp\r\n"

func TestAnUpgradeKeepsItsBodyApartFromItsStream(t *testing.T) {
	w := open(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		raw, stream, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer raw.Close()
		var early [5]byte
		_, _ = io.WriteString(raw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		_, _ = io.ReadFull(stream, early[:])
		_, _ = fmt.Fprintf(raw, "body=%s stream=%s", body, early)
	})
	for name, framed := range map[string]string{
		"sized":   "Content-Length: 14\r\n\r\n{\"Tty\": false}",
		"chunked": "Transfer-Encoding: chunked\r\n\r\ne\r\n{\"Tty\": false}\r\n0\r\n\r\n",
	} {
		said := w.say(t, "POST /exec HTTP/1.1\r\nHost: "+w.host()+"\r\n"+upgradeHead+framed+"hello")
		if !strings.HasSuffix(said, "\r\n\r\nbody={\"Tty\": false} stream=hello") {
			t.Errorf("%s: %q", name, said)
		}
	}
}

func TestAnUpgradeWithALargeBodyIsAnOrdinaryRequest(t *testing.T) {
	w := open(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintf(w, "%d bytes, upgrade %q", n, r.Header.Get("Upgrade"))
	})
	const bytes = 200_000
	body := strings.Repeat("x", bytes)
	for name, framed := range map[string]string{
		"sized":   fmt.Sprintf("Content-Length: %d\r\n\r\n%s", bytes, body),
		"chunked": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", bytes, body),
	} {
		said := w.say(t, "POST / HTTP/1.1\r\nHost: "+w.host()+"\r\nConnection: Upgrade, close\r\nUpgrade: tcp\r\n"+framed)
		if !strings.Contains(said, "200000 bytes, upgrade \"\"") {
			t.Errorf("%s: %q", name, said)
		}
	}
}

func TestARefusedUpgradeByHEADHasNoBody(t *testing.T) {
	w := open(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "777") })
	said := w.say(t, "HEAD / HTTP/1.1\r\nHost: "+w.host()+"\r\n"+upgradeHead+"\r\n")
	if !strings.Contains(said, "Content-Length: 777\r\n") || !strings.HasSuffix(said, "\r\n\r\n") {
		t.Errorf("%q", said)
	}
}

func TestAnUpgradeToAnEndedIncarnationIsLeftToItsCaller(t *testing.T) {
	pool := upstream.NewLimit(10).ToSandbox("127.0.0.1", nil)
	pool.Retire()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := forward.Upgrade(w, r, forward.To{Pool: pool, Port: upstream.Port{Number: 1}, Path: "/"}, func(error) []byte { return nil })
		if !errors.Is(err, upstream.ErrRetired) {
			t.Error(err)
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "tcp")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusTeapot {
		t.Error(answer.Status)
	}
}
