package httpapi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/semaphore"

	"aenv/native/gen/filesystem/filesystemconnect"
	"aenv/native/gen/process/processconnect"
)

const (
	// inputMaxBytes bounds one message with input for a process. More of it is sent as several.
	inputMaxBytes = 64 << 20
	// startMaxBytes is far beyond the arguments and variables that a kernel takes, escaped as JSON.
	startMaxBytes = 16 << 20
	// messageMaxBytes bounds all other messages: paths and names.
	messageMaxBytes = 1 << 20

	// freeBytes is up to which size a message is received without asking how many others are.
	freeBytes = 64 << 10
	// budgetBytes is how much of larger messages is received at a time.
	budgetBytes = inputMaxBytes
	budgetWait  = 30 * time.Second

	// An envelope begins with its flags and its size.
	envelopeHeadBytes = 5
)

// limitMessages bounds what is read of one message, by procedure. Compressed ones are refused: what they unfold to, which may
// be a thousand times as much, would be in memory before anybody could count it. No SDK sends any.
func limitMessages() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCompression("gzip", nil, nil),
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			return []connect.HandlerOption{connect.WithReadMaxBytes(messageLimit(spec.Procedure))}
		}),
	)
}

func messageLimit(procedure string) int {
	switch procedure {
	case processconnect.ProcessSendInputProcedure, processconnect.ProcessStreamInputProcedure:
		return inputMaxBytes
	case processconnect.ProcessStartProcedure:
		return startMaxBytes
	default:
		return messageMaxBytes
	}
}

// lastsOn tells that a call goes on when its message has been dealt with.
func lastsOn(procedure string) bool {
	switch procedure {
	case processconnect.ProcessStartProcedure, processconnect.ProcessConnectProcedure, processconnect.ProcessStreamInputProcedure,
		filesystemconnect.FilesystemWatchDirProcedure:
		return true
	default:
		return false
	}
}

// budget keeps large messages, each of which is in memory as a whole, from being received all at once.
type budget struct {
	left *semaphore.Weighted
	// growing is for the one message of unknown length that is being received: of two, each could have what the other needs.
	growing *semaphore.Weighted
	// wait is how long a message waits for its share, and how long one that has it may send nothing.
	wait time.Duration
}

func newBudget() *budget {
	return &budget{semaphore.NewWeighted(budgetBytes), semaphore.NewWeighted(1), budgetWait}
}

// wrap charges the bodies of the calls that pass through.
func (b *budget) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := &chargedBody{
			ReadCloser: r.Body, control: http.NewResponseController(w), budget: b, ctx: r.Context(),
			length: r.ContentLength, limit: int64(messageLimit(r.URL.Path)), lastsOn: lastsOn(r.URL.Path),
		}
		kind := r.Header.Get("Content-Type")
		body.enveloped = strings.HasPrefix(kind, "application/connect+") || strings.HasPrefix(kind, "application/grpc")
		defer body.release()
		r.Body = body
		next.ServeHTTP(w, r)
	})
}

// chargedBody holds as much of the budget as the message that is being read, or was last read, is large.
type chargedBody struct {
	io.ReadCloser
	control *http.ResponseController
	budget  *budget
	ctx     context.Context
	// length is that of the body, -1 when it is not known.
	length int64
	// limit is as much as is read of one message.
	limit     int64
	enveloped bool
	lastsOn   bool

	held    int64
	growing bool
	read    int64
	// skip is what is left of the current envelope, head what is known of the next one's.
	skip int64
	head []byte
}

func (b *chargedBody) Read(p []byte) (int, error) {
	if b.lastsOn && b.skip == 0 && len(b.head) == 0 {
		// Who asks for the next message has dealt with the one before.
		b.release()
	}
	n, err := b.receive(p)
	var problem error
	if b.enveloped {
		problem = b.chargeEnvelopes(p[:n])
	} else {
		problem = b.chargeWhole(n, errors.Is(err, io.EOF))
	}
	if problem != nil {
		return 0, problem
	}
	return n, err
}

// receive reads, and does not wait for long for what others wait behind.
func (b *chargedBody) receive(p []byte) (int, error) {
	if b.held == 0 {
		return b.ReadCloser.Read(p)
	}
	if err := b.control.SetReadDeadline(time.Now().Add(b.budget.wait)); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// The deadline stays: the connection is of no use any more.
		return n, connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("nothing of a large message came for %v", b.budget.wait))
	}
	if deadlineErr := b.control.SetReadDeadline(time.Time{}); deadlineErr != nil && err == nil {
		err = deadlineErr
	}
	return n, err
}

// chargeWhole is for a body that is one message.
func (b *chargedBody) chargeWhole(n int, ended bool) error {
	b.read += int64(n)
	switch {
	case ended:
		b.releaseAllBut(b.read)
		return nil
	case b.read <= max(freeBytes, b.held):
		return nil
	case b.length < 0:
		return b.grow()
	case b.held == 0:
		return b.hold(min(b.length, b.limit))
	default:
		return nil
	}
}

// grow takes twice the share for a message of unknown length.
func (b *chargedBody) grow() error {
	if !b.growing {
		if err := b.acquire(b.budget.growing, 1); err != nil {
			return err
		}
		b.growing = true
	}
	return b.hold(min(max(b.read, 2*b.held), b.limit) - b.held)
}

// chargeEnvelopes follows the sizes of the messages in a stream. The one before has been dealt with when a next begins.
func (b *chargedBody) chargeEnvelopes(data []byte) error {
	for len(data) > 0 {
		if skipped := min(b.skip, int64(len(data))); skipped > 0 {
			b.skip -= skipped
			data = data[skipped:]
			continue
		}
		taken := min(envelopeHeadBytes-len(b.head), len(data))
		b.head = append(b.head, data[:taken]...)
		data = data[taken:]
		if len(b.head) < envelopeHeadBytes {
			return nil
		}
		b.skip = int64(binary.BigEndian.Uint32(b.head[1:]))
		b.head = b.head[:0]
		b.release()
		if b.skip > b.limit {
			// It is refused by who reads it, unread.
			continue
		}
		if err := b.hold(b.skip); err != nil {
			return err
		}
	}
	return nil
}

// hold takes a share of the budget, or as much more of it.
func (b *chargedBody) hold(bytes int64) error {
	if bytes <= freeBytes {
		return nil
	}
	if err := b.acquire(b.budget.left, bytes); err != nil {
		return err
	}
	b.held += bytes
	return nil
}

func (b *chargedBody) acquire(from *semaphore.Weighted, share int64) error {
	ctx, cancel := context.WithTimeout(b.ctx, b.budget.wait)
	defer cancel()
	if err := from.Acquire(ctx, share); err != nil {
		return errors.Join(connect.NewError(connect.CodeResourceExhausted,
			fmt.Errorf("too many large messages at a time: this one found no room within %v", b.budget.wait)), b.ctx.Err())
	}
	return nil
}

func (b *chargedBody) release() { b.releaseAllBut(0) }

func (b *chargedBody) releaseAllBut(bytes int64) {
	if b.growing {
		b.budget.growing.Release(1)
		b.growing = false
	}
	if b.held > bytes {
		b.budget.left.Release(b.held - bytes)
		b.held = bytes
	}
}
