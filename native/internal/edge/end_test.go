package edge

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// wholeEnd is how a streamed answer ends over HTTP/1.1.
const wholeEnd = "4\r\nlast\r\n0\r\n\r\n"

// A client mostly waits for the end of an answer: it comes with the last of it, for which a client is woken once.
func TestTheEndOfAStreamComesWithTheLastOfIt(t *testing.T) {
	isRead := make(chan struct{})
	w := open(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-isRead:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "last")
	})
	const tries = 50
	// That a request's body is over may be known a moment late.
	for request, least := range map[string]int{
		"GET / HTTP/1.1\r\nHost: " + w.host() + "\r\n\r\n":                           tries,
		"POST / HTTP/1.1\r\nHost: " + w.host() + "\r\nContent-Length: 4\r\n\r\nbody": tries / 2,
	} {
		together := 0
		for range tries {
			conn := w.dial(t)
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			readUntil(t, conn, "first\r\n")
			isRead <- struct{}{}
			if nextPacket(t, conn.(syscall.Conn)) == wholeEnd {
				together++
			}
		}
		if together < least {
			t.Errorf("the end came with the last %d times of %d, after %q", together, tries, request)
		}
	}
}

// Where the client's own body goes on, the last of the answer does not wait for the end of that.
func TestTheLastOfAnAnswerDoesNotWaitForTheRequest(t *testing.T) {
	w := open(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.ReadFull(r.Body, make([]byte, 1))
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.ReadFull(r.Body, make([]byte, 1))
		_, _ = io.WriteString(w, "last")
	})
	conn := w.dial(t)
	say := func(text string) {
		t.Helper()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	say("POST / HTTP/1.1\r\nHost: " + w.host() + "\r\nContent-Length: 10\r\n\r\nx")
	readUntil(t, conn, "first\r\n")
	say("x")
	if said := readUntil(t, conn, "last\r\n"); strings.HasSuffix(said, "0\r\n\r\n") {
		t.Errorf("%q came when the request was given up", said)
	}
}

// readUntil returns what was read when that ends with an ending, or the answer is over.
func readUntil(t *testing.T, conn io.Reader, ending string) string {
	t.Helper()
	var said []byte
	for !strings.HasSuffix(string(said), ending) && !strings.HasSuffix(string(said), "\r\n0\r\n\r\n") {
		piece := make([]byte, 4096)
		n, err := conn.Read(piece)
		if err != nil {
			t.Fatalf("after %q: %v", said, err)
		}
		said = append(said, piece[:n]...)
	}
	return string(said)
}

// nextPacket is what arrives at once, however soon it is read.
func nextPacket(t *testing.T, conn syscall.Conn) string {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	piece, n := make([]byte, 4096), 0
	err = raw.Read(func(fd uintptr) bool {
		for n, err = -1, unix.EAGAIN; err == unix.EAGAIN; {
			// Without a wait, for which another piece could have come.
			n, err = unix.Read(int(fd), piece)
		}
		return true
	})
	if err != nil || n < 0 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	return string(piece[:n])
}
