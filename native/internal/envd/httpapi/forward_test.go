package httpapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// service listens on a loopback address and serves each connection with serve.
func service(t *testing.T, host string, serve func(*net.TCPConn)) int {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn.(*net.TCPConn))
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

// ask is request as the node does it.
func (b *bench) ask(port any, key, more string) (*net.TCPConn, *bufio.Reader, *http.Response) {
	b.t.Helper()
	return b.request("/forward", port, "X-Init-Key", key, more)
}

// request asks for a tunnel, with more right behind it, and reads the answer's head.
func (b *bench) request(path string, port any, header, key, more string) (*net.TCPConn, *bufio.Reader, *http.Response) {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.server.Listener.Addr().String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		b.t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s?port=%v HTTP/1.1\r\nHost: x\r\n%s: %s\r\nConnection: Upgrade\r\nUpgrade: aenv-tcp\r\n\r\n%s", path, port, header, key, more)
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return conn.(*net.TCPConn), in, res
}

func echo(conn *net.TCPConn) {
	defer conn.Close()
	_, _ = io.Copy(conn, conn)
	_ = conn.CloseWrite()
}

func TestForwardReachesLoopbackBothWaysAndHalfCloses(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1"}`)
	for _, host := range []string{"127.0.0.1", "::1"} {
		port := service(t, host, echo)
		conn, in, res := b.ask(port, "k1", "early ")
		if res.StatusCode != 101 || res.Header.Get("Upgrade") != "aenv-tcp" {
			t.Fatalf("%s: %v", host, res)
		}
		content := noise(8 << 20)
		go func() {
			_, _ = conn.Write(content)
			_ = conn.CloseWrite()
		}()
		// The echo ends only once it has seen the end.
		got, err := io.ReadAll(in)
		if err != nil || !bytes.Equal(got, append([]byte("early "), content...)) {
			t.Errorf("%s: %d bytes came back (%v)", host, len(got), err)
		}
	}
}

// What the service says after the client's end, and what the client says after the service's, arrives.
func TestForwardCarriesWhatFollowsTheOthersEnd(t *testing.T) {
	b := newBench(t)
	heard := make(chan string, 1)
	port := service(t, "127.0.0.1", func(conn *net.TCPConn) {
		defer conn.Close()
		_, _ = conn.Write([]byte("bye"))
		_ = conn.CloseWrite()
		text, _ := io.ReadAll(conn)
		heard <- string(text)
	})
	conn, in, _ := b.ask(port, "", "")
	if got, err := io.ReadAll(in); string(got) != "bye" || err != nil {
		t.Fatalf("%q %v", got, err)
	}
	_, _ = conn.Write([]byte("last word"))
	_ = conn.CloseWrite()
	if got := <-heard; got != "last word" {
		t.Errorf("the service heard %q", got)
	}
}

// A broken connection is broken for the other side too, at once, and never a clean end.
func TestForwardPassesResetsOn(t *testing.T) {
	b := newBench(t)
	port := service(t, "127.0.0.1", func(conn *net.TCPConn) {
		_, _ = io.ReadFull(conn, make([]byte, 1))
		_ = conn.SetLinger(0)
		conn.Close()
	})
	conn, in, _ := b.ask(port, "", "x")
	if _, err := in.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the service's reset: %v", err)
	}
	conn.Close()

	lost := make(chan error, 1)
	port = service(t, "127.0.0.1", func(conn *net.TCPConn) {
		defer conn.Close()
		_, err := io.Copy(io.Discard, conn)
		lost <- err
	})
	conn, _, _ = b.ask(port, "", "x")
	_ = conn.SetLinger(0)
	conn.Close()
	if err := <-lost; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the client's reset: %v", err)
	}
}

func TestForwardRefuses(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1"}`)
	closed := service(t, "127.0.0.1", echo)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := free.Addr().(*net.TCPAddr).Port
	free.Close()
	for what, c := range map[string]struct {
		port   any
		key    string
		status int
		text   string
	}{
		"no key":      {closed, "", 401, "X-Init-Key"},
		"wrong key":   {closed, "secret", 401, "X-Init-Key"},
		"nobody":      {unused, "k1", 502, `"reason":"not-open"`},
		"zero":        {0, "k1", 400, "1 to 65535"},
		"too large":   {65536, "k1", 400, "1 to 65535"},
		"a word":      {"http", "k1", 400, "1 to 65535"},
		"no port":     {"", "k1", 400, "1 to 65535"},
		"with a sign": {"%2B80", "k1", 400, "1 to 65535"},
	} {
		_, _, res := b.ask(c.port, c.key, "")
		text, err := io.ReadAll(res.Body)
		var body struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}
		if err != nil || json.Unmarshal(text, &body) != nil || res.StatusCode != c.status || body.Code != c.status || body.Message == "" || !strings.Contains(string(text), c.text) || !res.Close {
			t.Errorf("%s: %v %q %v", what, res, text, err)
		}
	}
	if got := b.do("GET", fmt.Sprintf("/forward?port=%d", closed), nil, "X-Init-Key", "k1"); got.status != 426 || got.header.Get("Upgrade") != "aenv-tcp" {
		t.Errorf("without an upgrade: %+v", got)
	}
	if got := b.do("POST", "/forward?port=1", nil, "X-Init-Key", "k1"); got.status != 405 {
		t.Errorf("POST: %+v", got)
	}
}
