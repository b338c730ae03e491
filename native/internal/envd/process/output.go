package process

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
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
	// publish passes on what was read; it may block.
	publish func(channel, []byte)
	// atEnd is called when the reader has come to the end of file.
	atEnd func()

	// turn is held from where a chunk is taken out of the pipe until it has been published: two may read, and order counts.
	turn sync.Mutex
	// done is closed at end of file, with turn held.
	done chan struct{}

	published atomic.Int64
}

var chunks = sync.Pool{New: func() any { return new([pipeChunkBytes]byte) }}

func newOutput(file *os.File, chunk int, from channel) *output {
	return &output{file: file, from: from, chunk: chunk, done: make(chan struct{})}
}

// run reads. It goes on after the process's end, so that a child left behind never meets a broken pipe.
func (o *output) run() {
	defer o.file.Close()
	conn, err := o.file.SyscallConn()
	for err == nil && !o.atEOF() {
		err = conn.Read(func(fd uintptr) bool { return o.readChunk(int(fd)) > 0 || o.atEOF() })
	}
	o.turn.Lock()
	o.end()
	o.turn.Unlock()
	o.atEnd()
}

// drain publishes what has been written up to now, and looks whether that was all. Who calls it knows that the process has ended, and
// does not wait until the reader has been woken for that.
func (o *output) drain() {
	conn, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	// A closed file means that all has been read.
	_ = conn.Control(func(fd uintptr) {
		if o.readChunk(int(fd)) == 0 {
			return
		}
		owed, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for err == nil && owed > 0 {
			n := o.readChunk(int(fd))
			if n == 0 {
				return
			}
			owed -= n
		}
		o.readChunk(int(fd))
	})
}

// readChunk publishes the next piece of output and returns its size; 0: there is none now, or will never be. A buffer is held only
// while there is something to read.
func (o *output) readChunk(fd int) int {
	o.turn.Lock()
	defer o.turn.Unlock()
	if o.atEOF() {
		return 0
	}
	data, err := o.readOnce(fd)
	switch {
	case errors.Is(err, unix.EAGAIN):
	case err != nil || len(data) == 0:
		o.end()
	default:
		o.publish(o.from, data)
		o.published.Add(int64(len(data)))
	}
	return len(data)
}

// readOnce returns a copy of what it read.
func (o *output) readOnce(fd int) ([]byte, error) {
	buffer := chunks.Get().(*[pipeChunkBytes]byte)
	defer chunks.Put(buffer)
	for {
		n, err := unix.Read(fd, buffer[:o.chunk])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return append([]byte(nil), buffer[:max(n, 0)]...), err
	}
}

// end is called with turn held.
func (o *output) end() {
	if !o.atEOF() {
		close(o.done)
	}
}

func (o *output) atEOF() bool { return isClosed(o.done) }

// settle returns when all that the exited process wrote has been published. Normally that is end of file at once; where
// a child left behind holds the pipe, it is when the pipe has been silent a moment.
func settle(outputs []*output) {
	for _, out := range outputs {
		out.drain()
	}
	start := time.Now()
	for _, out := range outputs {
		seen := out.published.Load()
		for !out.atEOF() {
			tick := time.NewTimer(drainIdle)
			select {
			case <-out.done:
			case <-tick.C:
			}
			tick.Stop()
			now := out.published.Load()
			if now == seen || time.Since(start) >= drainMax {
				break
			}
			seen = now
		}
	}
}
