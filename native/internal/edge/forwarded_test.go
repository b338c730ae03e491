package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// distant makes the connections of a listener come from elsewhere.
type distant struct {
	net.Listener
	peer net.Addr
}

type distantConn struct {
	*countedConn
	peer net.Addr
}

func (d distant) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return distantConn{conn.(*countedConn), d.peer}, nil
}

func (c distantConn) RemoteAddr() net.Addr { return c.peer }

// seenFrom is a port of the same edge whose clients have an address of the caller's choice.
func (w *world) seenFrom(t *testing.T, address string) *world {
	t.Helper()
	listener, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = w.server.server.Serve(distant{w.server.limit.of(listener), &net.TCPAddr{IP: net.ParseIP(address), Port: 1234}})
	}()
	other := *w
	other.edge = listener
	return &other
}

const lies = "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.2\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: lie\r\n" +
	"X-Forwarded-Port: 1\r\nx-forwarded-prefix: /lie\r\nForwarded: for=10.0.0.1\r\nX-Real-Ip: 10.0.0.1\r\nX_Forwarded_For: 10.0.0.1\r\n"

func TestServicesAreToldTheTruthAboutWhoCalls(t *testing.T) {
	w := openToBoth(t, func(http.ResponseWriter, *http.Request) {})
	host, heads := w.rawService(t)
	for _, c := range []struct{ peer, said, want string }{
		{"203.0.113.9", "", "203.0.113.9"},
		{"203.0.113.9", lies, "203.0.113.9"},
		{"::ffff:203.0.113.9", lies, "203.0.113.9"},
		{"2001:db8::1", lies, "2001:db8::1"},
		// A sandbox is no proxy of ours.
		{"10.11.0.2", lies, "10.11.0.2"},
		{"127.0.0.1", "", "127.0.0.1"},
		{"::1", "X-Forwarded-Host: lie\r\n", "::1"},
	} {
		from := w.seenFrom(t, c.peer)
		want := map[string]string{"X-Forwarded-For": c.want, "X-Forwarded-Proto": "http", "X-Forwarded-Host": host}
		for _, more := range []string{"Connection: close\r\n", "Connection: close, X-Forwarded-For\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\n"} {
			said := from.say(t, "GET / HTTP/1.1\r\nHost: "+host+"\r\n"+more+c.said+"\r\n")
			expectCaller(t, c.peer, next(t, heads, said), want)
		}
		client := from.http2(t)
		fields := []string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", host}
		for line := range strings.SplitSeq(c.said, "\r\n") {
			if name, value, isField := strings.Cut(line, ": "); isField {
				fields = append(fields, strings.ToLower(name), value)
			}
		}
		client.head(t, 1, true, fields...)
		expectCaller(t, c.peer, next(t, heads, "over HTTP/2"), want)
	}
}

func TestAProxyOnTheSameHostSaysWhoCalls(t *testing.T) {
	w := openToBoth(t, func(http.ResponseWriter, *http.Request) {})
	host, heads := w.rawService(t)
	said := w.say(t, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: lie\r\nX-Real-Ip: 203.0.113.9\r\n\r\n")
	expectCaller(t, "a proxy", next(t, heads, said), map[string]string{"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "X-Forwarded-Host": host, "X-Real-Ip": "203.0.113.9"})
}

// next is the head that a service got; what says what the client got instead.
func next(t *testing.T, heads <-chan string, what string) string {
	t.Helper()
	select {
	case head := <-heads:
		return head
	case <-time.After(rawTime):
		t.Fatalf("the service got nothing: %q", what)
		return ""
	}
}

// expectCaller: of all that may tell who calls there is in the head what is wanted, once each, and nothing else.
func expectCaller(t *testing.T, peer, head string, want map[string]string) {
	t.Helper()
	request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head)))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for name, values := range request.Header {
		if plain := strings.ToLower(name); strings.Contains(plain, "forwarded") || strings.Contains(plain, "real") {
			told[name] = strings.Join(values, ", ")
		}
	}
	if fmt.Sprint(told) != fmt.Sprint(want) {
		t.Errorf("from %s: %v, not %v", peer, told, want)
	}
}

func TestTheAPIIsToldWhoCallsInHeadersOfOurs(t *testing.T) {
	w := openToBoth(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Join([]string{r.Header.Get(peerHeader), r.Header.Get(schemeHeader), r.Header.Get(forwardedProto)}, " "))
	}).seenFrom(t, "203.0.113.9")
	said := w.say(t, "GET / HTTP/1.1\r\nHost: api\r\nConnection: close\r\nX-Forwarded-Proto: https\r\nX-Aenv-Peer: 127.0.0.1\r\nX-Aenv-Scheme: https\r\n\r\n")
	if !strings.HasSuffix(said, "\r\n\r\n203.0.113.9 http https") {
		t.Errorf("%q", said)
	}
}
