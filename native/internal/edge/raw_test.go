package edge

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const rawTime = 10 * time.Second

// openToBoth is an edge whose API is the same service as that in the sandbox.
func openToBoth(t *testing.T, service http.HandlerFunc) *world {
	t.Helper()
	w := open(t, service)
	listener, err := net.Listen("unix", w.apiSocket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: service, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return w
}

// dial is a client's connection that does not outlast the test.
func (w *world) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", w.edge.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(rawTime)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// say sends bytes over HTTP/1.1 and returns those of the answer, which the edge has to end.
func (w *world) say(t *testing.T, request string) string {
	t.Helper()
	conn := w.dial(t)
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("after %q: %v", said, err)
	}
	return string(said)
}

// statusOf is an HTTP/1.1 answer's.
func statusOf(t *testing.T, said string) int {
	t.Helper()
	answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader([]byte(said))), nil)
	if err != nil {
		t.Fatalf("%q: %v", said, err)
	}
	return answer.StatusCode
}

// client speaks HTTP/2, also as no library would.
type client struct {
	conn   net.Conn
	framer *http2.Framer
	coded  bytes.Buffer
	coder  *hpack.Encoder
}

func (w *world) http2(t *testing.T, settings ...http2.Setting) *client {
	t.Helper()
	conn := w.dial(t)
	c := &client{conn: conn, framer: http2.NewFramer(conn, conn)}
	c.coder = hpack.NewEncoder(&c.coded)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.AllowIllegalWrites = true
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c.must(t, c.framer.WriteSettings(settings...))
	return c
}

func (c *client) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// head sends fields, given as name, value, name, value, …
func (c *client) head(t *testing.T, stream uint32, isLast bool, fields ...string) {
	t.Helper()
	c.coded.Reset()
	for at := 0; at < len(fields); at += 2 {
		c.must(t, c.coder.WriteField(hpack.HeaderField{Name: fields[at], Value: fields[at+1]}))
	}
	block := c.coded.Bytes()
	first := block[:min(len(block), 16<<10)]
	c.must(t, c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: isLast, EndHeaders: len(first) == len(block)}))
	for block = block[len(first):]; len(block) > 0; {
		piece := block[:min(len(block), 16<<10)]
		block = block[len(piece):]
		c.must(t, c.framer.WriteContinuation(stream, len(block) == 0, piece))
	}
}

// answer is the status and the trailers of a stream; 0 when it, or its connection, was reset.
func (c *client) answer(t *testing.T, stream uint32) (status int, trailer http.Header) {
	t.Helper()
	for {
		frame, err := c.framer.ReadFrame()
		switch {
		case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
			return 0, nil
		case err != nil:
			t.Fatalf("stream %d: %v", stream, err)
		}
		if frame.Header().StreamID != stream {
			continue
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if status == 0 {
				status, _ = strconv.Atoi(frame.PseudoValue("status"))
				if status < 200 {
					status = 0
				}
			} else {
				trailer = http.Header{}
				for _, field := range frame.RegularFields() {
					trailer.Add(field.Name, field.Value)
				}
			}
			if frame.StreamEnded() {
				return status, trailer
			}
		case *http2.DataFrame:
			if frame.StreamEnded() {
				return status, trailer
			}
		case *http2.RSTStreamFrame:
			return 0, nil
		}
	}
}
