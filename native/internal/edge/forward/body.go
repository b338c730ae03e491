package forward

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"aenv/native/internal/edge/pieces"
	"aenv/native/internal/edge/upstream"
)

// tailBytes go out with the end of an HTTP/2 stream, where the server holds back less than it does: clients take empty DATA
// frames for abuse.
const tailBytes = 1 << 10

// isPlain: the client's connection is a TCP connection, and all of it the request's.
func isPlain(r *http.Request) bool { return r.ProtoMajor == 1 && r.TLS == nil }

// sized passes on a body of a known length.
func sized(w http.ResponseWriter, r *http.Request, conn *upstream.Conn, control *http.ResponseController, left int64) error {
	ahead := min(int64(conn.Reader.Buffered()), left)
	if ahead > 0 {
		piece, _ := conn.Reader.Peek(int(ahead))
		if _, err := w.Write(piece); err != nil {
			return ErrClientGone
		}
		_, _ = conn.Reader.Discard(int(ahead))
		left -= ahead
	}
	if left == 0 {
		return nil
	}
	if control.Flush() != nil {
		return ErrClientGone
	}
	if isPlain(r) {
		// Between two TCP connections the kernel moves the bytes itself.
		n, err := io.Copy(w, &io.LimitedReader{R: conn.Conn, N: left})
		return cutUnless(n == left && err == nil)
	}
	body := &io.LimitedReader{R: conn.Conn, N: left}
	err := pieces.Move(body.Read, func(piece pieces.Piece) error {
		return writePiece(w, control, piece.Bytes(), body.N == 0)
	})
	if errors.Is(err, io.EOF) {
		return cutUnless(body.N == 0)
	}
	return clientOrCut(err)
}

// clientOrCut: what is no failure of writing to the client is one of reading from the service.
func clientOrCut(err error) error {
	if errors.Is(err, ErrClientGone) {
		return err
	}
	return ErrCut
}

// writePiece holds the end of the last piece back for the end of the stream.
func writePiece(w http.ResponseWriter, control *http.ResponseController, piece []byte, isLast bool) error {
	tail := 0
	if isLast {
		tail = min(len(piece), tailBytes)
	}
	if _, err := w.Write(piece[:len(piece)-tail]); err != nil {
		return ErrClientGone
	}
	if control.Flush() != nil {
		return ErrClientGone
	}
	if _, err := w.Write(piece[len(piece)-tail:]); err != nil {
		return ErrClientGone
	}
	return nil
}

// streamed passes on a body whose end shows only when it comes.
func streamed(w http.ResponseWriter, conn *upstream.Conn, from io.Reader, control *http.ResponseController) error {
	// The first bytes may be a long time off, and the head must not wait for them. Those that came along go with it.
	isBegun := conn.Reader.Buffered() == 0
	if isBegun && control.Flush() != nil {
		return ErrClientGone
	}
	isEnded := false
	read := func(into []byte) (int, error) {
		n, err := from.Read(into)
		isEnded = errors.Is(err, io.EOF)
		return n, err
	}
	err := pieces.Move(read, func(piece pieces.Piece) error {
		if _, err := w.Write(piece.Bytes()); err != nil {
			return ErrClientGone
		}
		if isBegun && isEnded {
			// Goes out with the end, which is what a client mostly waits for: it is woken once. (An answer that is all held back
			// would be given a length, and lose its trailers.)
			return nil
		}
		isBegun = true
		if control.Flush() != nil {
			return ErrClientGone
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return clientOrCut(err)
}

func cutUnless(isWhole bool) error {
	if isWhole {
		return nil
	}
	return ErrCut
}

// pump sends a client's body on while its answer may be coming already. A nil one is no body.
type pump struct {
	r     *http.Request
	to    To
	conn  *upstream.Conn
	waits bool
	// start is closed when the service wants the body.
	start   chan struct{}
	started sync.Once
	done    chan struct{}
	// moved counts steps, so that it is seen when there are none.
	moved atomic.Int64
	// isCut: the rest was not wanted.
	isCut bool
	// isStalled: it was given up because nothing came, or nothing was taken.
	isStalled atomic.Bool
	// Valid when done.
	readErr, writeErr error
}

func newPump(r *http.Request, to To, conn *upstream.Conn) *pump {
	if !HasBody(r) {
		return nil
	}
	return &pump{r: r, to: to, conn: conn, waits: strings.EqualFold(r.Header.Get("Expect"), "100-continue"),
		start: make(chan struct{}), done: make(chan struct{})}
}

// begin starts the body's way, or its wait for the service to ask for it.
func (p *pump) begin() {
	if p == nil {
		return
	}
	if !p.waits {
		p.release()
	}
	go func() {
		defer close(p.done)
		select {
		case <-p.start:
		case <-time.After(continueWait):
		}
		p.run()
	}()
}

// release: the service asks for the body.
func (p *pump) release() {
	if p != nil {
		p.started.Do(func() { close(p.start) })
	}
}

func (p *pump) run() {
	isChunked := p.r.ContentLength < 0
	err := pieces.Move(p.r.Body.Read, func(piece pieces.Piece) error {
		p.moved.Add(1)
		framed := piece.Bytes()
		if isChunked {
			framed = piece.Framed(fmt.Sprintf("%x\r\n", len(framed)), "\r\n")
		}
		_, p.writeErr = p.conn.Write(framed)
		p.moved.Add(1)
		return p.writeErr
	})
	switch {
	case p.writeErr != nil:
	case !errors.Is(err, io.EOF):
		p.readErr = err
		// Half a body must not be taken for a whole one.
		p.conn.Abort()
	case isChunked:
		_, p.writeErr = p.conn.Write(lastChunk(p.to, p.r.Trailer))
	}
}

// endStalled ends the exchange of a body that does not move for so long.
func (p *pump) endStalled(limit time.Duration) {
	if p == nil || limit == 0 {
		return
	}
	go func() {
		if !p.movesOn(limit) {
			p.isStalled.Store(true)
			p.conn.Abort()
		}
	}()
}

// movesOn returns when the body is done, or, false, has not moved for so long.
func (p *pump) movesOn(limit time.Duration) bool {
	for {
		before := p.moved.Load()
		select {
		case <-p.done:
			return true
		case <-time.After(limit):
			if p.moved.Load() == before {
				return false
			}
		}
	}
}

// clientLeft: its body broke off. Precondition: cut or finish has returned.
func (p *pump) clientLeft() bool {
	return p != nil && (p.isStalled.Load() || p.readErr != nil && !p.isCut)
}

// giveUp frees the upstream of a body that it has answered without, so that clients cannot hold its connections.
func (p *pump) giveUp() {
	if p == nil {
		return
	}
	select {
	case <-p.done:
	case <-time.After(giveUpTime):
		_ = p.conn.Close()
	}
}

func (p *pump) isDone() bool {
	if p == nil {
		return true
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// cut ends it; after that neither connection carries more requests.
func (p *pump) cut(control *http.ResponseController) {
	if p.isDone() {
		return
	}
	p.isCut = true
	p.release()
	_ = control.SetReadDeadline(time.Unix(1, 0))
	_ = p.conn.SetWriteDeadline(time.Unix(1, 0))
	<-p.done
}

// finish waits, after the answer, for what is left of the body. True when all of it has been sent on.
func (p *pump) finish(r *http.Request, w http.ResponseWriter, control *http.ResponseController) bool {
	if p == nil {
		return true
	}
	select {
	case <-p.start:
		p.wait(r, w, control)
	default:
		// The service has answered without asking for it.
	}
	p.cut(control)
	if p.writeErr != nil && !p.isCut && r.ProtoMajor == 1 {
		drain(r, control)
	}
	return p.readErr == nil && p.writeErr == nil && !p.isCut
}

func (p *pump) wait(r *http.Request, w http.ResponseWriter, control *http.ResponseController) {
	isSized := len(w.Header()["Content-Length"]) > 0
	switch {
	case r.ProtoMajor > 1:
		// A stream ends with its handler, and its client is told that the rest is not wanted.
	case isSized && control.Flush() == nil:
		p.movesOn(leaveTime)
	default:
		select {
		case <-p.done:
		case <-time.After(chunkedLeaveTime):
		}
	}
}

// drain takes what a client still sends to a service that is gone.
func drain(r *http.Request, control *http.ResponseController) {
	if control.SetReadDeadline(time.Now().Add(leaveTime)) == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
}
