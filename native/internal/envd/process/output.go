package process

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pipeChunkBytes     = 32 << 10
	terminalChunkBytes = 16 << 10
	// drainIdle is how long a pipe that somebody else still holds must be silent after the process's exit.
	drainIdle = 100 * time.Millisecond
	// drainMax is how long a pipe that never falls silent delays the end event.
	drainMax = 500 * time.Millisecond
)

// output reads one pipe or terminal of a process until nobody can write to it any more.
type output struct {
	file  *os.File
	from  channel
	chunk int
	// done is closed at end of file.
	done chan struct{}

	// mu makes "taken out of the pipe" and "counted" one step.
	mu   sync.Mutex
	read int64

	published atomic.Int64
}

var chunks = sync.Pool{New: func() any { return new([pipeChunkBytes]byte) }}

func newOutput(file *os.File, chunk int, from channel) *output {
	return &output{file: file, from: from, chunk: chunk, done: make(chan struct{})}
}

// run publishes what is read. It goes on after the process's end, so that a child left behind never meets a broken pipe.
func (o *output) run(publish func(channel, []byte)) {
	defer close(o.done)
	defer o.file.Close()
	conn, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		data, err := o.next(conn)
		if err != nil {
			return
		}
		publish(o.from, data)
		o.published.Add(int64(len(data)))
	}
}

// next waits for output and returns a copy of it. A buffer is held only while there is something to read.
func (o *output) next(conn syscall.RawConn) (data []byte, err error) {
	waitErr := conn.Read(func(fd uintptr) bool {
		buffer := chunks.Get().(*[pipeChunkBytes]byte)
		defer chunks.Put(buffer)
		var n int
		n, err = o.readOnce(int(fd), buffer[:o.chunk])
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if err == nil && n == 0 {
			err = os.ErrClosed
		}
		if n > 0 {
			data = append([]byte(nil), buffer[:n]...)
		}
		return true
	})
	if waitErr != nil {
		return nil, waitErr
	}
	return data, err
}

func (o *output) readOnce(fd int, buffer []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		n, err := unix.Read(fd, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		o.read += int64(max(n, 0))
		return n, err
	}
}

// owed is the count of bytes that must be published before everything written up to now has been.
func (o *output) owed() int64 {
	conn, err := o.file.SyscallConn()
	if err != nil {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	waiting := 0
	// A closed file means that all has been read.
	_ = conn.Control(func(fd uintptr) {
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			waiting = n
		}
	})
	return o.read + int64(waiting)
}

func (o *output) atEOF() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// settle returns when all that the exited process wrote has been published. Normally that is end of file at once; where
// a child left behind holds the pipe, it is when the process's own bytes are out and the pipe has been silent a moment.
func settle(outputs []*output) {
	start := time.Now()
	owed := make([]int64, len(outputs))
	for i, out := range outputs {
		owed[i] = out.owed()
	}
	for i, out := range outputs {
		seen := out.published.Load()
		for !out.atEOF() {
			tick := time.NewTimer(drainIdle)
			select {
			case <-out.done:
			case <-tick.C:
			}
			tick.Stop()
			now := out.published.Load()
			late := time.Since(start) >= drainMax
			if now >= owed[i] && (now == seen || late) {
				break
			}
			seen = now
		}
	}
}
