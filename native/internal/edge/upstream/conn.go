package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	agentPort = 49983
	// readBytes is enough for most heads, and for small answers whole.
	readBytes = 4096
	// maxHeadBytes: a service that says more before its body is not listened to.
	maxHeadBytes = 64 << 10
	// MaxFields of a head: each takes many times its bytes.
	MaxFields = 200
	// tunnelTime is longer than the agent takes for a service whose queue is full.
	tunnelTime = 10 * time.Second
)

var (
	errHeadTooLarge  = fmt.Errorf("the head of the answer is larger than %d bytes", maxHeadBytes)
	errTooManyFields = fmt.Errorf("the head of the answer has more than %d fields", MaxFields)
)

// HasTooManyFields counts a head, with the trailers that it announces.
func HasTooManyFields(header, trailer http.Header) bool {
	count := len(trailer)
	for _, values := range header {
		count += len(values)
	}
	return count > MaxFields
}

// Conn is one connection to an upstream. One request at a time uses it, and ends it by Keep or Close.
type Conn struct {
	net.Conn
	// Reader has what was read ahead of what was asked for.
	Reader *bufio.Reader
	// Reused: it has carried a request before, and its service may just have closed it.
	Reused bool

	pool      *Pool
	port      int
	bound     *boundReader
	idleSince time.Time
	ended     sync.Once
}

// boundReader bounds what is read while a head is.
type boundReader struct {
	io.Reader
	isBound bool
	left    int
}

func (b *boundReader) Read(into []byte) (int, error) {
	if !b.isBound {
		return b.Reader.Read(into)
	}
	if b.left <= 0 {
		return 0, errHeadTooLarge
	}
	n, err := b.Reader.Read(into[:min(len(into), b.left)])
	b.left -= n
	return n, err
}

func newConn(pool *Pool, port int, raw net.Conn) *Conn {
	bound := &boundReader{Reader: raw}
	return &Conn{Conn: raw, Reader: bufio.NewReaderSize(bound, readBytes), pool: pool, port: port, bound: bound}
}

var asked = map[bool]*http.Request{true: {Method: http.MethodHead}, false: {Method: http.MethodGet}}

// ReadHead reads the head of an answer, also of an interim one. The body is read from Reader, or from the answer's Body.
func (c *Conn) ReadHead(isHead bool) (*http.Response, error) {
	c.bound.isBound, c.bound.left = true, maxHeadBytes
	defer func() { c.bound.isBound = false }()
	said, err := http.ReadResponse(c.Reader, asked[isHead])
	if err == nil && HasTooManyFields(said.Header, said.Trailer) {
		return nil, errTooManyFields
	}
	return said, err
}

// WriteHead sends a head; with more, the kernel waits for the body, so that both travel in one packet: 200 ms, or until Push.
func (c *Conn) WriteHead(head []byte, more bool) error {
	raw := c.rawConn()
	if !more || raw == nil {
		_, err := c.Write(head)
		return err
	}
	sent := 0
	var sendErr error
	err := raw.Write(func(fd uintptr) bool {
		sent, sendErr = unix.SendmsgN(int(fd), head, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
		return !errors.Is(sendErr, unix.EAGAIN)
	})
	if err := errors.Join(err, sendErr); err != nil {
		return err
	}
	if sent < len(head) {
		_, err = c.Write(head[sent:])
	}
	return err
}

// Push sends what WriteHead has held back.
func (c *Conn) Push() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		// Setting it again is what has the kernel send at once.
		_ = tcp.SetNoDelay(true)
	}
}

// Detach is the bare connection, for whoever reads past Reader. The pool ends it with its incarnation; Close or Abort has to be
// called when it is done with.
func (c *Conn) Detach() net.Conn {
	c.Reader, c.bound = nil, nil
	return c.Conn
}

// Keep gives the connection back for the next request. Precondition: the answer has been read whole.
func (c *Conn) Keep() {
	if c.Reader.Buffered() > 0 {
		c.Close()
		return
	}
	c.pool.keep(c)
}

// Close ends the connection; what was written still arrives.
func (c *Conn) Close() error {
	var err error
	c.ended.Do(func() {
		err = c.Conn.Close()
		c.pool.forget(c)
	})
	return err
}

// Abort ends the connection so that its service sees a reset, and takes nothing for whole.
func (c *Conn) Abort() {
	c.ended.Do(func() {
		c.reset()
		c.pool.forget(c)
	})
}

func (c *Conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Conn.Close()
}

func (c *Conn) rawConn() syscall.RawConn {
	plain, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := plain.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// isQuiet is true while the peer has neither said anything nor left.
func (c *Conn) isQuiet() bool {
	raw := c.rawConn()
	if raw == nil {
		return false
	}
	isQuiet := false
	err := raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		isQuiet = errors.Is(err, unix.EAGAIN)
		return true
	})
	return err == nil && isQuiet
}

// openTunnel asks the agent at the other end for a port of the sandbox's loopback; from then on the connection is one to it.
func (c *Conn) openTunnel(ctx context.Context, port Port) error {
	defer context.AfterFunc(ctx, c.reset)()
	_ = c.SetDeadline(time.Now().Add(tunnelTime))
	_, err := fmt.Fprintf(c, "GET /forward?port=%d HTTP/1.1\r\nHost: agent\r\nX-Init-Key: %s\r\nConnection: Upgrade\r\nUpgrade: aenv-tcp\r\n\r\n",
		port.Number, port.AgentKey)
	if err != nil {
		return err
	}
	answer, err := c.ReadHead(false)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("the agent answered %d to a tunnel to port %d", answer.StatusCode, port.Number)
	}
	return c.SetDeadline(time.Time{})
}

func portText(port int) string { return strconv.Itoa(port) }
