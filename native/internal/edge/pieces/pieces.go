// Package pieces moves bytes in large pieces while there are many, and holds next to nothing while there are none: most streams
// through the edge are idle most of the time.
package pieces

import "sync"

const (
	// Large pieces: each call of a sandbox's kernel is dear. A stream whose reader is slow holds one.
	Large = 64 << 10
	small = 2 << 10
	// Front and Back are free bytes around each piece, for who frames it in place.
	Front = 16
	Back  = 2
)

var buffers = sync.Pool{New: func() any { buffer := make([]byte, Front+Large+Back); return &buffer }}

// Lend gives a large buffer, for who knows that there is something to read.
func Lend() (buffer []byte, giveBack func()) {
	lent := buffers.Get().(*[]byte)
	return (*lent)[Front : Front+Large], func() { buffers.Put(lent) }
}

// Piece is what was read at once.
type Piece struct {
	buffer []byte
	n      int
}

// Bytes is valid until the next piece is read.
func (p Piece) Bytes() []byte { return p.buffer[Front : Front+p.n] }

// Framed puts text around the piece, of at most Front and Back bytes.
func (p Piece) Framed(front, back string) []byte {
	start := Front - len(front)
	copy(p.buffer[start:], front)
	copy(p.buffer[Front+p.n:], back)
	return p.buffer[start : Front+p.n+len(back)]
}

// Move reads until there is an error, and returns that, or write's. What was read is written before.
func Move(read func([]byte) (int, error), write func(Piece) error) error {
	var little [Front + small + Back]byte
	for {
		n, err := step(little[:], read, write)
		if err == nil && n == small {
			err = moveLarge(read, write)
		}
		if err != nil {
			return err
		}
	}
}

// moveLarge goes on while there is more than a little.
func moveLarge(read func([]byte) (int, error), write func(Piece) error) error {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for {
		n, err := step(*buffer, read, write)
		if err != nil || n < small {
			return err
		}
	}
}

func step(buffer []byte, read func([]byte) (int, error), write func(Piece) error) (int, error) {
	n, err := read(buffer[Front : len(buffer)-Back])
	if n > 0 {
		if writeErr := write(Piece{buffer, n}); writeErr != nil {
			return n, writeErr
		}
	}
	return n, err
}
