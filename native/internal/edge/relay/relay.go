// Package relay joins two connections: what one says the other hears, as it comes, for as long as they like.
package relay

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"aenv/native/internal/edge/pieces"
	"aenv/native/internal/oneway"
)

// Side is one of the two. Ahead is what was read of it before.
type Side struct {
	Conn  net.Conn
	Ahead []byte
}

// Join returns at once; done is called when both directions have ended, or one has failed and both connections were reset.
// The end of one direction is passed on as such (half-close).
func Join(a, b Side, done func()) {
	pair := &pair{a: a.Conn, b: b.Conn, done: done}
	pair.open.Store(2)
	go pair.move(a, b.Conn)
	go pair.move(b, a.Conn)
}

type pair struct {
	a, b net.Conn
	done func()
	// open directions.
	open atomic.Int32
}

func (p *pair) move(from Side, to net.Conn) {
	err := copyAll(from, to)
	if err != nil {
		// The other direction ends by it.
		p.reset()
	}
	if p.open.Add(-1) == 0 {
		_ = p.a.Close()
		_ = p.b.Close()
		p.done()
		return
	}
	if plain, ok := under(from.Conn).(syscall.Conn); ok && err == nil && oneway.AwaitLoss(plain) {
		p.reset()
	}
}

func (p *pair) reset() {
	Reset(p.a)
	Reset(p.b)
}

// Reset ends a connection so that the peer sees that something was lost.
func Reset(conn net.Conn) {
	conn = under(conn)
	if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// under is the connection below TLS.
func under(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return conn
}

func copyAll(from Side, to net.Conn) error {
	if len(from.Ahead) > 0 {
		if _, err := to.Write(from.Ahead); err != nil {
			return err
		}
	}
	if err := copyRest(from.Conn, to); err != nil {
		return err
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func copyRest(from, to net.Conn) error {
	if plain, ok := from.(syscall.Conn); ok {
		return oneway.Copy(to, plain, pieces.Lend)
	}
	return copySecured(from, to)
}

// copySecured holds little while little comes.
func copySecured(from, to net.Conn) error {
	err := pieces.Move(from.Read, func(piece pieces.Piece) error {
		_, err := to.Write(piece.Bytes())
		return err
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
