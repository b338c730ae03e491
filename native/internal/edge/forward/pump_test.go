package forward

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"aenv/native/internal/edge/upstream"
)

// proxied serves what Forward makes of each request to a service, which gets raw connections; ended hears of every return.
func proxied(t *testing.T, bodyIdle time.Duration, service func(net.Conn)) (proxy *httptest.Server, ended chan error) {
	t.Helper()
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := inside.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go service(conn)
		}
	}()
	pool := upstream.NewLimit(100).ToSandbox("127.0.0.1", nil)
	ended = make(chan error, 10)
	to := To{Pool: pool, Port: upstream.Port{Number: inside.Addr().(*net.TCPAddr).Port}, Path: "/", BodyIdle: bodyIdle}
	proxy = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := Forward(w, r, to)
		ended <- err
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	proxy.EnableHTTP2 = true
	proxy.StartTLS()
	t.Cleanup(func() {
		pool.Retire()
		_ = inside.Close()
		proxy.Close()
	})
	return proxy, ended
}

// answersEarly says an answer when it has read a head, and reads no more, but keeps the connection.
func answersEarly(answer string) func(net.Conn) {
	return func(conn net.Conn) {
		reader := bufio.NewReaderSize(conn, 16)
		for line := ""; line != "\r\n"; {
			var err error
			if line, err = reader.ReadString('\n'); err != nil {
				return
			}
		}
		_, _ = io.WriteString(conn, answer)
	}
}

// endless is a body that goes on until the request is over.
func endless(t *testing.T) io.Reader {
	reader, writer := io.Pipe()
	t.Cleanup(func() { _ = writer.Close() })
	go func() {
		piece := make([]byte, 64<<10)
		for {
			if _, err := writer.Write(piece); err != nil {
				return
			}
		}
	}()
	return reader
}

func within(t *testing.T, limit time.Duration, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		t.Fatal("the request is still held")
		return nil
	}
}

func TestAServiceThatAnswersEarlyAndReadsNoMoreHoldsNothing(t *testing.T) {
	const sized, chunked = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
	for _, answer := range []string{sized, chunked} {
		for _, isH2 := range []bool{true, false} {
			t.Run(fmt.Sprintf("h2 %t, chunked %t", isH2, answer == chunked), func(t *testing.T) {
				t.Parallel()
				proxy, ended := proxied(t, 0, answersEarly(answer))
				client := proxy.Client()
				client.Transport.(*http.Transport).ForceAttemptHTTP2 = isH2
				if !isH2 {
					client.Transport.(*http.Transport).TLSClientConfig.NextProtos = []string{"http/1.1"}
				}
				response, err := client.Post(proxy.URL, "", endless(t))
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				if wanted := map[bool]int{true: 2, false: 1}[isH2]; response.ProtoMajor != wanted {
					t.Fatalf("spoke %s", response.Proto)
				}
				start := time.Now()
				text, err := io.ReadAll(response.Body)
				if string(text) != "ok" || err != nil {
					t.Errorf("%q, %v", text, err)
				}
				if isH2 && time.Since(start) > leaveTime/2 {
					t.Errorf("the end of the stream took %s", time.Since(start))
				}
				if err := within(t, 3*leaveTime, ended); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// dial asks the proxy by hand.
func dial(t *testing.T, proxy *httptest.Server, text string) net.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", proxy.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

const promised = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"

func TestABodyThatNeverComesIsNotWaitedForAfterItsAnswer(t *testing.T) {
	for _, bodyIdle := range []time.Duration{0, time.Minute} {
		t.Run(bodyIdle.String(), func(t *testing.T) {
			t.Parallel()
			left := make(chan error, 1)
			proxy, ended := proxied(t, bodyIdle, func(conn net.Conn) {
				answersEarly("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")(conn)
				_, err := conn.Read(make([]byte, 1))
				left <- err
			})
			conn := dial(t, proxy, promised)
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || response.StatusCode != http.StatusUnauthorized {
				t.Fatalf("%v, %v", response, err)
			}
			limit := 2 * leaveTime
			if bodyIdle > 0 {
				limit = leaveTime / 2
			}
			if err := within(t, limit, left); err == nil {
				t.Error("something was sent")
			}
			if err := within(t, 3*leaveTime, ended); err != nil {
				t.Error(err)
			}
		})
	}
}

// A small answer holds nothing, also of a client that opens no window for it, though its body is not over.
func TestAnAnswerThatMayNotBeSentYetIsNotWaitedFor(t *testing.T) {
	for _, status := range []string{"200 OK", "401 Unauthorized"} {
		proxy, ended := proxied(t, time.Minute, answersEarly("HTTP/1.1 "+status+"\r\nContent-Length: 2\r\n\r\nok"))
		conn, err := tls.Dial("tcp", proxy.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var head bytes.Buffer
		coder := hpack.NewEncoder(&head)
		for _, field := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", "/"}, {":authority", "x"}} {
			_ = coder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
		}
		framer := http2.NewFramer(conn, conn)
		_, prefaceErr := io.WriteString(conn, http2.ClientPreface)
		if err := errors.Join(prefaceErr,
			framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true}),
		); err != nil {
			t.Fatal(err)
		}
		if err := within(t, 50*giveUpTime, ended); err != nil {
			t.Errorf("%s: %v", status, err)
		}
	}
}

// The last of an answer comes at once, also where its service then refuses the rest of the body.
func TestTheLastOfAnAnswerDoesNotWaitForWhatIsDropped(t *testing.T) {
	for range 10 {
		proxy, _ := proxied(t, 0, func(conn net.Conn) {
			_, _ = io.ReadFull(conn, make([]byte, 10))
			_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nTransfer-Encoding: chunked\r\n\r\n")
			time.Sleep(50 * time.Millisecond)
			_, _ = io.WriteString(conn, "4\r\nlast\r\n0\r\n\r\n")
			// What was not read makes this a reset.
			_ = conn.Close()
		})
		conn := dial(t, proxy, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
		go func() {
			for piece := make([]byte, 1<<10); ; time.Sleep(100 * time.Microsecond) {
				if _, err := conn.Write(piece); err != nil {
					return
				}
			}
		}()
		start := time.Now()
		var said []byte
		for !bytes.Contains(said, []byte("last")) {
			piece := make([]byte, 4096)
			n, err := conn.Read(piece)
			if err != nil {
				// A reset may come before what was said.
				break
			}
			said = append(said, piece[:n]...)
		}
		if took := time.Since(start); took > leaveTime*3/4 {
			t.Fatalf("%q took %v", said, took)
		}
		_ = conn.Close()
	}
}

func TestABodyThatDoesNotMoveEndsItsRequestWhereThatIsAsked(t *testing.T) {
	const bodyIdle = 500 * time.Millisecond
	proxy, ended := proxied(t, bodyIdle, func(conn net.Conn) {
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		text, _ := io.ReadAll(request.Body)
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	})
	silent := dial(t, proxy, promised+"12345")
	if err := within(t, 10*bodyIdle, ended); !errors.Is(err, ErrClientGone) {
		t.Error(err)
	}
	if _, err := io.ReadAll(silent); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	slow := dial(t, proxy, promised)
	for range 10 {
		time.Sleep(bodyIdle / 8)
		if _, err := io.WriteString(slow, "x"); err != nil {
			t.Fatal(err)
		}
	}
	response, err := http.ReadResponse(bufio.NewReader(slow), nil)
	if err != nil || response.ContentLength != 10 {
		t.Errorf("a slow body: %v, %v", response, err)
	}
}
