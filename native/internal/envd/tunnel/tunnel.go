// Package tunnel carries bytes between a connection from outside and a service that listens on loopback only, which
// nobody outside the sandbox can reach otherwise.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"aenv/native/internal/envd/pieces"
	"aenv/native/internal/oneway"
)

const (
	// Max is how many tunnels there are at a time. An idle one costs two descriptors and two goroutines.
	Max = 4096

	// dialTime is for a service whose queue of connections is full: loopback answers at once otherwise.
	dialTime = 5 * time.Second
)

// loopbacks are tried in this order: most services that bind to "localhost" bind to the first.
var loopbacks = []string{"127.0.0.1", "::1"}

// ErrNotOpen says that nothing listens on the port.
var ErrNotOpen = errors.New("port is not open")

// ErrTooMany says that there are Max tunnels already.
var ErrTooMany = fmt.Errorf("%d connections to ports are open already", Max)

// Tunnels counts what is open. The zero value is ready for use.
type Tunnels struct {
	open atomic.Int64
}

// Open connects to a port on loopback and returns the connection, which counts as open until it is given to Close. Errors:
// ErrNotOpen, ErrTooMany, or the system's where a service is there and does not answer.
func (t *Tunnels) Open(ctx context.Context, port uint16) (*net.TCPConn, error) {
	if t.open.Add(1) > Max {
		t.open.Add(-1)
		return nil, ErrTooMany
	}
	conn, err := dial(ctx, port)
	if err != nil {
		t.open.Add(-1)
		return nil, err
	}
	return conn, nil
}

// Close ends a connection made by Open.
func (t *Tunnels) Close(conn *net.TCPConn) {
	_ = conn.Close()
	t.open.Add(-1)
}

func dial(ctx context.Context, port uint16) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	var dialer net.Dialer
	problem := ErrNotOpen
	for _, host := range loopbacks {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		if !isAbsent(err) && errors.Is(problem, ErrNotOpen) {
			problem = fmt.Errorf("port %d does not answer: %w", port, err)
		}
	}
	return nil, problem
}

// isAbsent tells that nobody listens, or that the sandbox has no such loopback.
func isAbsent(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)
}

// Join carries bytes both ways until both sides have ended, or one has failed, and then closes client; service is its
// caller's. head is what the client has sent already. An end of one direction is passed on as such (half-close), a failure
// as a reset, so that nobody takes a broken answer for a whole one.
func Join(client, service *net.TCPConn, head []byte) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if err := carry(client, service, nil); err != nil {
			reset(client, service)
		}
	}()
	if err := carry(service, client, head); err != nil {
		reset(client, service)
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if oneway.AwaitLoss(client) {
			reset(client, service)
		}
	}()
	<-answered
	_ = client.Close()
	<-watched
}

// carry copies from one side to the other to the end, and passes the end on.
func carry(to, from *net.TCPConn, head []byte) error {
	err := write(to, head)
	if err == nil {
		err = oneway.Copy(to, from, lend)
	}
	if err == nil {
		err = to.CloseWrite()
	}
	return err
}

// reset ends both connections at once, which also wakes whoever reads or writes them.
func reset(conns ...*net.TCPConn) {
	for _, conn := range conns {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
}

func lend() ([]byte, func()) {
	taken := pieces.Take()
	return taken.Bytes, taken.Give
}

func write(to io.Writer, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	_, err := to.Write(data)
	return err
}
