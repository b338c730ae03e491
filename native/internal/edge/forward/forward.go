// Package forward sends requests on and answers back: bytes as they come, no timeout, nothing held back.
package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"aenv/native/internal/edge/upstream"
)

const (
	// continueWait: a service that knows nothing of `Expect: 100-continue` says nothing to it, and gets the body after this.
	continueWait = time.Second
	// leaveTime is for a client to finish its body when no more is wanted of it: many look for the answer only then. A body
	// that goes on moving into its service after the answer may take longer.
	leaveTime = 5 * time.Second
	// chunkedLeaveTime: the end of a chunked answer is told only when its request is over.
	chunkedLeaveTime = time.Second
	// pushTime is for a body to come with its head. Where its client has more to think about, the head goes alone.
	pushTime = time.Millisecond
	// giveUpTime is for the end of a body that has arrived as a whole to be seen here as well.
	giveUpTime = 100 * time.Millisecond
	maxInterim = 32
)

var (
	// ErrLost: the upstream went away before it answered, or said what is no HTTP. The request may have been carried out.
	ErrLost = errors.New("the upstream went away before it answered")
	// ErrClientGone: nobody waits for an answer any more.
	ErrClientGone = errors.New("the client has left")
	// ErrCut: the answer ended in its middle. The client's connection (or stream) must end so that it is not taken for whole.
	ErrCut = errors.New("the answer was cut short")
)

// To is where a request goes and what of its head is another there.
type To struct {
	Pool *upstream.Pool
	Port upstream.Port
	Path string
	// Host replaces the client's, unless empty.
	Host string
	// Drop are headers that are not passed on, in canonical form.
	Drop func(name string, values []string) bool
	// Extra are more of them.
	Extra http.Header
	// NoTrailers: none are passed on.
	NoTrailers bool
	// BodyIdle, unless 0, is for an upstream that has few connections and reads no body after its answer: a body that does not
	// move for so long is the end of its request, and one that is still on its way when the answer has been given is dropped.
	BodyIdle time.Duration
}

// safe may be sent again on a new connection when a kept one turned out to be closed. PUT and DELETE may not: what was carried out is
// answered otherwise the second time.
var safe = map[string]bool{http.MethodGet: true, http.MethodHead: true, http.MethodOptions: true}

// HasBody is read off the head: what a body has once begun to give is gone, so such a request is sent once only.
func HasBody(r *http.Request) bool { return r.ContentLength != 0 }

// Forward returns when the answer has been sent whole and no more of the client's body is wanted. Before anything has been
// answered it returns the pool's errors (nothing was sent), ErrLost or ErrClientGone; afterwards ErrCut or ErrClientGone.
func Forward(w http.ResponseWriter, r *http.Request, to To) error {
	control := http.NewResponseController(w)
	if r.ProtoMajor == 1 && HasBody(r) {
		if err := control.EnableFullDuplex(); err != nil {
			return err
		}
	}
	mayRepeat := safe[r.Method] && !HasBody(r)
	for isFirst := true; ; isFirst = false {
		get := to.Pool.Get
		switch {
		case !isFirst:
			get = to.Pool.Dial
		case !mayRepeat:
			get = to.Pool.GetSettled
		}
		conn, err := get(r.Context(), to.Port)
		if err != nil && r.Context().Err() != nil {
			return ErrClientGone
		}
		if err != nil {
			return err
		}
		err = exchange(w, r, to, conn, control)
		if isFirst && errors.Is(err, ErrLost) && conn.Reused && mayRepeat && !to.Pool.Retired() {
			continue
		}
		return err
	}
}

// exchange carries one request and its answer over one connection, which is kept or closed when it returns.
func exchange(w http.ResponseWriter, r *http.Request, to To, conn *upstream.Conn, control *http.ResponseController) error {
	stop := context.AfterFunc(r.Context(), conn.Abort)
	body := newPump(r, to, conn)
	if err := conn.WriteHead(headOf(r, to), body != nil && !body.waits); err != nil {
		return lost(r, conn, stop)
	}
	body.begin()
	body.endStalled(to.BodyIdle)
	isKept, err := answer(w, r, conn, control, body)
	if errors.Is(err, ErrLost) {
		err = lost(r, conn, stop)
	}
	if err != nil {
		stop()
		conn.Abort()
		// For the server this client counts as gone from here on, though it may be there and get an answer.
		body.cut(control)
		if body.clientLeft() {
			err = ErrClientGone
		}
		return err
	}
	if to.BodyIdle > 0 {
		body.giveUp()
	}
	isWhole := body.finish(r, w, control)
	if stop() && isKept && isWhole {
		conn.Keep()
	} else {
		conn.Close()
	}
	return nil
}

// lost tells the true reason: with a client that has left its upstream is ended as well.
func lost(r *http.Request, conn *upstream.Conn, stop func() bool) error {
	stop()
	conn.Abort()
	if r.Context().Err() != nil {
		return ErrClientGone
	}
	return ErrLost
}

// answer passes on the head and the body of what the upstream says. Its result: the connection can carry another request.
func answer(w http.ResponseWriter, r *http.Request, conn *upstream.Conn, control *http.ResponseController, body *pump) (bool, error) {
	said, err := finalHead(w, r, conn, body)
	if err != nil {
		return false, ErrLost
	}
	setHead(w.Header(), said)
	isKept := !said.Close
	if r.Method == http.MethodHead || said.StatusCode == http.StatusNoContent || said.StatusCode == http.StatusNotModified {
		w.WriteHeader(said.StatusCode)
		return isKept, nil
	}
	w.WriteHeader(said.StatusCode)
	if said.ContentLength >= 0 {
		return isKept, sized(w, r, conn, control, said.ContentLength)
	}
	if err := streamed(w, conn, said.Body, control); err != nil {
		return false, err
	}
	setTrailers(w.Header(), said)
	return isKept, nil
}

// finalHead passes interim answers on and returns the final one's head.
func finalHead(w http.ResponseWriter, r *http.Request, conn *upstream.Conn, body *pump) (*http.Response, error) {
	for range maxInterim {
		said, err := conn.ReadHead(r.Method == http.MethodHead)
		switch {
		case err != nil:
			return nil, err
		case said.StatusCode == http.StatusSwitchingProtocols || said.StatusCode < 100:
			return nil, ErrLost
		case said.StatusCode >= 200:
			return said, nil
		case said.StatusCode == http.StatusContinue:
			// The client is told so when its body is first read.
			body.release()
		// HTTP/1.0 has no interim answers.
		case r.ProtoAtLeast(1, 1):
			endToEnd(said.Header, func(name string, values []string) { w.Header()[name] = values })
			w.WriteHeader(said.StatusCode)
			clear(w.Header())
		}
	}
	return nil, ErrLost
}

// Refused is what is left to do for a client that was answered without its body having been asked for: that is read, but not
// for ever. Over HTTP/2 the end of the answer tells the client that no more is wanted.
func Refused(w http.ResponseWriter, r *http.Request) {
	if !HasBody(r) || r.ProtoMajor > 1 || r.Header.Get("Expect") != "" {
		return
	}
	control := http.NewResponseController(w)
	_ = control.Flush()
	_ = control.SetReadDeadline(time.Now().Add(leaveTime))
	_, _ = io.Copy(io.Discard, r.Body)
}
