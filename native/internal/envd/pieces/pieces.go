// Package pieces carries bulk data. A system call is dear in a sandbox, so data is moved in large pieces; and an agent is
// small, so there are few of them: whoever comes when all large buffers are taken gets a small one and is slower.
package pieces

import (
	"io"
	"sync"
)

const (
	// LargeBytes is the size of a large buffer: larger ones are no faster.
	LargeBytes = 1 << 20
	smallBytes = 32 << 10
	// largeMax bounds the memory that transfers which do not move can tie up.
	largeMax = 8
)

// Buffer is lent by Take until Give.
type Buffer struct{ Bytes []byte }

var (
	large = make(chan struct{}, largeMax)

	largePool = sync.Pool{New: func() any { return &Buffer{make([]byte, LargeBytes)} }}
	smallPool = sync.Pool{New: func() any { return &Buffer{make([]byte, smallBytes)} }}
)

// Take gives a large buffer, or a small one. It never waits.
func Take() *Buffer {
	select {
	case large <- struct{}{}:
		return largePool.Get().(*Buffer)
	default:
		return takeSmall()
	}
}

func takeSmall() *Buffer { return smallPool.Get().(*Buffer) }

// Give takes a buffer back. It must not be used afterwards.
func (b *Buffer) Give() {
	if len(b.Bytes) == LargeBytes {
		largePool.Put(b)
		<-large
		return
	}
	smallPool.Put(b)
}

// Lent is how many large buffers are out.
func Lent() int { return len(large) }

// Copy copies to the end of from, in as few writes as there can be. The error is the first of either side.
func Copy(to io.Writer, from io.Reader) error {
	// Most of what is copied is short.
	head := takeSmall()
	ended, err := copyPiece(to, from, head.Bytes)
	head.Give()
	if ended || err != nil {
		return err
	}
	piece := Take()
	defer piece.Give()
	for !ended && err == nil {
		ended, err = copyPiece(to, from, piece.Bytes)
	}
	return err
}

// CopyCounted is Copy for who tells how much was read, all of which is written unless there is an error.
func CopyCounted(to io.Writer, from io.Reader) (bytes int64, err error) {
	counted := &counter{from: from}
	err = Copy(to, counted)
	return counted.bytes, err
}

type counter struct {
	from  io.Reader
	bytes int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.bytes += int64(n)
	return n, err
}

// copyPiece fills the buffer before it writes.
func copyPiece(to io.Writer, from io.Reader, buffer []byte) (ended bool, err error) {
	filled := 0
	for filled < len(buffer) && err == nil {
		var n int
		n, err = from.Read(buffer[filled:])
		filled += n
	}
	// io.ErrUnexpectedEOF, with which readers of formats say that something is cut, is no end: io.ReadFull would mix them up.
	if err == io.EOF {
		ended, err = true, nil
	}
	if err != nil || filled == 0 {
		return ended, err
	}
	_, err = to.Write(buffer[:filled])
	return ended, err
}
