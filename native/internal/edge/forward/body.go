package forward

import (
	"errors"
	"io"
	"net/http"

	"aenv/native/internal/edge/pieces"
	"aenv/native/internal/edge/upstream"
)

// tailBytes go out with the end of an HTTP/2 stream, where the server holds back less than it does: clients take empty DATA
// frames for abuse.
const tailBytes = 1 << 10

// isPlain: the client's connection is a TCP connection, and all of it the request's.
func isPlain(r *http.Request) bool { return r.ProtoMajor == 1 && r.TLS == nil }

// sized passes on a body of a known length.
func sized(w http.ResponseWriter, r *http.Request, conn *upstream.Conn, control *http.ResponseController, left int64) error {
	ahead := min(int64(conn.Reader.Buffered()), left)
	if ahead > 0 {
		piece, _ := conn.Reader.Peek(int(ahead))
		if _, err := w.Write(piece); err != nil {
			return ErrClientGone
		}
		_, _ = conn.Reader.Discard(int(ahead))
		left -= ahead
	}
	if left == 0 {
		return nil
	}
	if control.Flush() != nil {
		return ErrClientGone
	}
	if isPlain(r) {
		// Between two TCP connections the kernel moves the bytes itself.
		n, err := io.Copy(w, &io.LimitedReader{R: conn.Conn, N: left})
		return cutUnless(n == left && err == nil)
	}
	body := &io.LimitedReader{R: conn.Conn, N: left}
	err := pieces.Move(body.Read, func(piece pieces.Piece) error {
		return writePiece(w, control, piece.Bytes(), body.N == 0)
	})
	if errors.Is(err, io.EOF) {
		return cutUnless(body.N == 0)
	}
	return clientOrCut(err)
}

// clientOrCut: what is no failure of writing to the client is one of reading from the service.
func clientOrCut(err error) error {
	if errors.Is(err, ErrClientGone) {
		return err
	}
	return ErrCut
}

// writePiece holds the end of the last piece back for the end of the stream.
func writePiece(w http.ResponseWriter, control *http.ResponseController, piece []byte, isLast bool) error {
	tail := 0
	if isLast {
		tail = min(len(piece), tailBytes)
	}
	if _, err := w.Write(piece[:len(piece)-tail]); err != nil {
		return ErrClientGone
	}
	if control.Flush() != nil {
		return ErrClientGone
	}
	if _, err := w.Write(piece[len(piece)-tail:]); err != nil {
		return ErrClientGone
	}
	return nil
}

// streamed passes on a body whose end shows only when it comes.
func streamed(w http.ResponseWriter, conn *upstream.Conn, from io.Reader, control *http.ResponseController) error {
	// The first bytes may be a long time off, and the head must not wait for them. Those that came along go with it.
	isBegun := conn.Reader.Buffered() == 0
	if isBegun && control.Flush() != nil {
		return ErrClientGone
	}
	isEnded := false
	read := func(into []byte) (int, error) {
		n, err := from.Read(into)
		isEnded = errors.Is(err, io.EOF)
		return n, err
	}
	err := pieces.Move(read, func(piece pieces.Piece) error {
		if _, err := w.Write(piece.Bytes()); err != nil {
			return ErrClientGone
		}
		if isBegun && isEnded {
			// Goes out with the end, which is what a client mostly waits for: it is woken once. (An answer that is all held back
			// would be given a length, and lose its trailers.)
			return nil
		}
		isBegun = true
		if control.Flush() != nil {
			return ErrClientGone
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return clientOrCut(err)
}

func cutUnless(isWhole bool) error {
	if isWhole {
		return nil
	}
	return ErrCut
}
