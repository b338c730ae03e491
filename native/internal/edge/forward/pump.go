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

// pump sends a client's body on while its answer may be coming already. A nil one is no body.
type pump struct {
	r     *http.Request
	to    To
	conn  *upstream.Conn
	waits bool
	// start is closed when the service wants the body.
	start   chan struct{}
	started sync.Once
	// push sends a head whose body does not come with it. nil: it has been sent.
	push *time.Timer
	done chan struct{}
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
		p.push = time.AfterFunc(pushTime, p.conn.Push)
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
		if p.push != nil {
			p.push.Stop()
		}
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
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// cut ends it; after that neither connection carries more requests.
func (p *pump) cut(control *http.ResponseController) {
	if p == nil || p.isDone() {
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
	case !p.isDone():
		// What is held back for the end of the answer does not wait for that of the request.
		_ = control.Flush()
		select {
		case <-p.done:
		case <-time.After(chunkedLeaveTime):
		}
	}
}

// drain takes what a client still sends to a service that is gone.
func drain(r *http.Request, control *http.ResponseController) {
	if control.Flush() == nil && control.SetReadDeadline(time.Now().Add(leaveTime)) == nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
}
