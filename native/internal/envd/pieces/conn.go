package pieces

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// directBytes is from which size on a reader's own buffer is good enough.
const directBytes = smallBytes

// Listener makes every connection a Conn.
type Listener struct{ net.Listener }

// Accept waits for a connection. It must be of TCP.
func (l Listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := accepted.(*net.TCPConn)
	if !ok {
		accepted.Close()
		return nil, errors.New("not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		tcp.Close()
		return nil, err
	}
	return &Conn{TCPConn: tcp, raw: raw}, nil
}

// Conn is a TCP connection that is read and fed in large pieces though its user, an HTTP server, asks for small ones. An
// idle one holds no buffer.
type Conn struct {
	*net.TCPConn
	raw syscall.RawConn
	// flow is how the last Read went.
	flow flow

	mu sync.Mutex
	// ahead is what was read beyond what was asked for; rest is the part of it that is still to be asked for.
	ahead  *Buffer
	rest   []byte
	closed bool
}

// flow is how much comes on a connection: a request of a few bytes is to cost no buffer.
type flow uint8

const (
	trickle flow = iota
	stream
	flood
)

// take gives what to read ahead into, nil for nothing.
func (f flow) take() *Buffer {
	switch f {
	case stream:
		return takeSmall()
	case flood:
		return Take()
	default:
		return nil
	}
}

// after is the flow when n bytes came where there was room for more, or not.
func (f flow) after(n, room int) flow {
	switch {
	case n == room && f < flood:
		return f + 1
	case n < smallBytes && n < room:
		return trickle
	default:
		return f
	}
}

func (c *Conn) Read(p []byte) (int, error) {
	if n := c.takeRest(p); n > 0 || len(p) == 0 {
		return n, nil
	}
	if len(p) >= directBytes {
		return c.TCPConn.Read(p)
	}
	return c.readAhead(p)
}

func (c *Conn) takeRest(p []byte) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	if len(c.rest) == 0 {
		c.dropAheadLocked()
	}
	return n
}

func (c *Conn) dropAheadLocked() {
	giveBack(c.ahead)
	c.ahead, c.rest = nil, nil
}

// readAhead fills p, and with the same system call a buffer of its own with what has arrived beyond.
func (c *Conn) readAhead(p []byte) (int, error) {
	var n, room int
	var readErr error
	var ahead *Buffer
	waitErr := c.raw.Read(func(fd uintptr) bool {
		into := [][]byte{p}
		room = len(p)
		if ahead = c.flow.take(); ahead != nil {
			into = append(into, ahead.Bytes)
			room += len(ahead.Bytes)
		}
		n, readErr = readvOnce(int(fd), into)
		if !errors.Is(readErr, unix.EAGAIN) {
			return true
		}
		giveBack(ahead)
		ahead = nil
		return false
	})
	if waitErr != nil {
		return 0, waitErr
	}
	if readErr != nil {
		giveBack(ahead)
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: readErr}
	}
	c.flow = c.flow.after(n, room)
	if n > len(p) {
		c.keep(ahead, n-len(p))
		return len(p), nil
	}
	giveBack(ahead)
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func giveBack(ahead *Buffer) {
	if ahead != nil {
		ahead.Give()
	}
}

func (c *Conn) keep(ahead *Buffer, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		ahead.Give()
		return
	}
	c.ahead, c.rest = ahead, ahead.Bytes[:bytes]
}

func readvOnce(fd int, into [][]byte) (int, error) {
	for {
		n, err := unix.Readv(fd, into)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// ReadFrom sends all of from. (The kernel's sendfile is slower in a sandbox.)
func (c *Conn) ReadFrom(from io.Reader) (int64, error) {
	return CopyCounted(c.TCPConn, from)
}

// Close also ends a Read that waits.
func (c *Conn) Close() error {
	err := c.TCPConn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.dropAheadLocked()
	return err
}

// Detach gives up the connection to the caller, with what was read ahead. No Read may be under way.
func (c *Conn) Detach() (conn *net.TCPConn, ahead []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ahead = append([]byte(nil), c.rest...)
	c.dropAheadLocked()
	return c.TCPConn, ahead
}
