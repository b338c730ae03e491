// Package fault names the few kinds of failure blobd's callers can act on. The service turns a kind into a wire code in
// one place; everything else only wraps.
package fault

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Kind says what a caller can do about an error.
type Kind int

const (
	// Internal: a defect or a broken machine; retrying does not help.
	Internal Kind = iota
	// Invalid: the request or the image itself is wrong.
	Invalid
	// NotFound: the named thing does not exist.
	NotFound
	// Conflict: what is there is in the way of the request.
	Conflict
	// Unauthenticated: credentials are missing or wrong.
	Unauthenticated
	// Denied: the credentials are good, but not for this.
	Denied
	// Unavailable: try again later.
	Unavailable
	// Exhausted: disk or a limit is used up.
	Exhausted
	// Unsupported: this machine cannot do it (missing kernel feature).
	Unsupported
	// Cancelled: the caller went away or the service stops.
	Cancelled
)

// Error is an error with a kind. Its text stands on its own.
type Error struct {
	Kind  Kind
	Text  string
	Cause error
}

func (e *Error) Error() string {
	if e.Cause == nil {
		return e.Text
	}
	return e.Text + ": " + e.Cause.Error()
}

func (e *Error) Unwrap() error { return e.Cause }

// New makes an error of a kind from a format.
func New(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// Wrap gives cause a kind and says what failed.
func Wrap(kind Kind, cause error, format string, args ...any) error {
	return &Error{Kind: kind, Text: fmt.Sprintf(format, args...), Cause: cause}
}

// KindOf finds the kind of err: the outermost named one, else what the operating system or a context said.
func KindOf(err error) Kind {
	var named *Error
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return Exhausted
	case errors.As(err, &named):
		return named.Kind
	case errors.Is(err, errors.ErrUnsupported):
		return Unsupported
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Cancelled
	default:
		return Internal
	}
}
