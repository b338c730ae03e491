// Package stream carries what long-lived answers need and connect-go does not offer: a deadline that the handler keeps
// itself, in running time, and a way out of a write that the client does not take.
package stream

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultKeepAlive is the silence after which a stream gets a keepalive, unless the client asks otherwise.
	DefaultKeepAlive = 90 * time.Second

	timeoutHeader       = "Connect-Timeout-Ms"
	maxKeepAliveSeconds = 24 * 3600
)

type contextKey struct{}

type details struct {
	timeout time.Duration
	abort   func()
	answer  *answer
}

// answer is written to as it comes, until its end is announced.
type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	isLast  bool
}

// Flush implements http.Flusher, which connect-go calls after each message.
func (a *answer) Flush() {
	if !a.isLast {
		_ = a.control.Flush()
	}
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Wrap prepares the streaming requests that pass through. Their timeout header is taken away from connect-go, which
// would end the request's context by the machine's clock, also after a pause; the handler asks Timeout instead.
func Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		out := &answer{ResponseWriter: w, control: control}
		d := details{answer: out, abort: func() { _ = control.SetWriteDeadline(time.Unix(1, 0)) }}
		if ms, err := strconv.ParseInt(r.Header.Get(timeoutHeader), 10, 64); err == nil && ms > 0 {
			d.timeout = time.Duration(min(ms, int64(1<<62/time.Millisecond))) * time.Millisecond
		}
		r = r.WithContext(context.WithValue(r.Context(), contextKey{}, d))
		r.Header.Del(timeoutHeader)
		next.ServeHTTP(out, r)
	})
}

// Last announces that the handler sends one more message and returns: that, connect-go's own last word and the end of the answer
// go out as one piece, which is one call of the kernel here, and one thing to read for everybody up to the client.
func Last(ctx context.Context) {
	if d, ok := ctx.Value(contextKey{}).(details); ok {
		d.answer.isLast = true
	}
}

// Timeout is how long the client lets the stream run; 0 means for ever.
func Timeout(ctx context.Context) time.Duration {
	d, _ := ctx.Value(contextKey{}).(details)
	return d.timeout
}

// Abort returns a function that makes the answer's pending and later writes fail.
func Abort(ctx context.Context) func() {
	if d, ok := ctx.Value(contextKey{}).(details); ok {
		return d.abort
	}
	return func() {}
}

// KeepAlive reads the interval, in whole seconds, that a client asks for in Keepalive-Ping-Interval.
func KeepAlive(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Keepalive-Ping-Interval"))
	if err != nil || seconds <= 0 {
		return DefaultKeepAlive
	}
	return time.Duration(min(seconds, maxKeepAliveSeconds)) * time.Second
}
