package process

import (
	"context"
	"errors"
	"os"
	"time"
)

// errInputClosed says that nobody can read what would be written.
var errInputClosed = errors.New("standard input is closed")

// input is the writing end of a process's standard input or terminal. Writes are kept whole and in the order of arrival.
type input struct {
	file *os.File
	// keyboard is nil for what is no terminal. It is guarded by turn.
	keyboard *keyboard
	// turn holds one token: whoever has it may write or close.
	turn chan struct{}
	// ended is closed when the process has exited; a write that nobody will read ends then.
	ended <-chan struct{}
	// closed is guarded by turn.
	closed bool
}

func newInput(file *os.File, ended <-chan struct{}) *input {
	in := &input{file: file, turn: make(chan struct{}, 1), ended: ended}
	in.turn <- struct{}{}
	return in
}

// write blocks while the process does not read. It gives up when ctx or the process ends. It may change data.
func (in *input) write(ctx context.Context, data []byte) error {
	if err := in.take(ctx); err != nil {
		return err
	}
	defer in.give()
	if in.closed {
		return errInputClosed
	}
	if in.keyboard != nil {
		data = in.keyboard.press(data)
	}
	finished := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-finished:
			return
		case <-ctx.Done():
		case <-in.ended:
		}
		_ = in.file.SetWriteDeadline(time.Unix(1, 0))
	}()
	_, err := in.file.Write(data)
	close(finished)
	<-watching
	_ = in.file.SetWriteDeadline(time.Time{})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return ctx.Err()
	default:
		return errInputClosed
	}
}

// closeInput ends the input after the writes before it. Closing twice is fine.
func (in *input) close(ctx context.Context) error {
	if err := in.take(ctx); err != nil {
		return err
	}
	defer in.give()
	if in.closed {
		return nil
	}
	in.closed = true
	return in.file.Close()
}

func (in *input) take(ctx context.Context) error {
	select {
	case <-in.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (in *input) give() { in.turn <- struct{}{} }
