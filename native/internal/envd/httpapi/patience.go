package httpapi

import (
	"io"
	"net/http"
	"time"

	"aenv/native/internal/envd/pieces"
)

// transferIdleTime is how long an upload may send nothing, and a download take none of a piece. Clients that stream rely on the
// agent to give them up.
const transferIdleTime = 10 * time.Minute

// impatiently calls receive with a body that ends when nothing comes for too long.
func (f *files) impatiently(w http.ResponseWriter, r *http.Request, receive func() error) error {
	control := http.NewResponseController(w)
	body := r.Body
	r.Body = &impatientBody{body, control, f.idle}
	err := receive()
	r.Body = body
	// What is read from the connection from now on is another request.
	_ = control.SetReadDeadline(time.Time{})
	return err
}

// impatientBody ends when nothing comes for too long.
type impatientBody struct {
	io.ReadCloser
	control *http.ResponseController
	idle    time.Duration
}

func (b *impatientBody) Read(p []byte) (int, error) {
	if err := b.control.SetReadDeadline(time.Now().Add(b.idle)); err != nil {
		return 0, err
	}
	return b.ReadCloser.Read(p)
}

// impatient gives up a client that takes nothing for too long.
func (f *files) impatient(w http.ResponseWriter) http.ResponseWriter {
	return &impatientWriter{w, http.NewResponseController(w), f.idle}
}

// impatientWriter has a new deadline for each piece. The last one stays for what the server has yet to send, which takes it away
// before the connection's next request.
type impatientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	idle    time.Duration
}

func (w *impatientWriter) Write(p []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(w.idle)); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(p)
}

// ReadFrom sends all of from, in pieces as large as those of the connection's own.
func (w *impatientWriter) ReadFrom(from io.Reader) (int64, error) { return pieces.CopyCounted(w, from) }

func (w *impatientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
