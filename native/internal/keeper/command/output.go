package command

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// outputLimit bounds what is kept of each stream; the rest is read and thrown away, so that the command goes on.
	outputLimit = 8 << 20
	// drainIdle is how long a stream may stay silent after the command's end before it counts as finished: a grandchild
	// may hold it open for good.
	drainIdle = 50 * time.Millisecond
	// drainMax bounds the drain when a grandchild keeps writing.
	drainMax = time.Second
)

// output collects one stream of a command through a pipe.
type output struct {
	read *os.File
	data []byte
	// truncated: there was more than outputLimit.
	truncated bool
	finished  chan struct{}

	mu       sync.Mutex
	drainEnd time.Time // zero while the command runs
}

// newOutput returns the collector and the end to give to the command, which the caller closes after the start.
func newOutput() (*output, *os.File, error) {
	read, write, err := pipe(0)
	if err != nil {
		return nil, nil, err
	}
	return &output{read: read, finished: make(chan struct{})}, write, nil
}

// pipe makes a pipe of which one end, 0 for reading or 1 for writing, is ours: it never blocks a thread and can be given
// a deadline. The other end blocks, as commands expect.
func pipe(ours int) (read, write *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(fds[ours], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// collect reads until the end of the stream, or until drain cuts it off.
func (o *output) collect() {
	defer close(o.finished)
	defer o.read.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := o.read.Read(buffer)
		room := outputLimit - len(o.data)
		if n > room {
			o.truncated = true
		}
		o.data = append(o.data, buffer[:min(n, room)]...)
		if err != nil {
			return
		}
		o.extend()
	}
}

// drain lets the collection end: at the end of the stream, or once it has been silent. `finished` tells when.
// Preconditions: the command has ended.
func (o *output) drain() {
	o.mu.Lock()
	o.drainEnd = time.Now().Add(drainMax)
	o.mu.Unlock()
	o.extend()
}

func (o *output) extend() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.drainEnd.IsZero() {
		return
	}
	next := time.Now().Add(drainIdle)
	if next.After(o.drainEnd) {
		next = o.drainEnd
	}
	// Fails only when the stream has ended and the file is closed.
	_ = o.read.SetReadDeadline(next)
}
