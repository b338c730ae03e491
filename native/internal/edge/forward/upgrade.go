package forward

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"aenv/native/internal/edge/relay"
	"aenv/native/internal/edge/upstream"
)

// maxEarlyBytes is what a client may send before its upgrade is answered. More waits on its side of the connection.
const maxEarlyBytes = 64 << 10

// IsUpgrade: an offer to speak HTTP/2 in clear text may be ignored, and is: the request is an ordinary one.
func IsUpgrade(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.ProtoMinor == 0 || r.Header.Get("Upgrade") == "" || strings.EqualFold(r.Header.Get("Upgrade"), "h2c") {
		return false
	}
	for _, value := range r.Header["Connection"] {
		for token := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}

// Upgrade takes a connection out of the server's hands and through to a service. The service may take its time to answer, as
// long as the client is there. Before that it returns the pool's errors, as Forward does, and ErrClientGone. refuse is what a
// client gets raw when the service goes away before it has answered.
func Upgrade(w http.ResponseWriter, r *http.Request, to To, refuse func(error) []byte) error {
	body, isWhole, err := contentOf(r)
	if err != nil {
		return ErrClientGone
	}
	if !isWhole {
		// An offer may be ignored: with a body that is not held here the request is an ordinary one.
		return Forward(w, r, to)
	}
	// A new one: a kept one may just have been closed by its service, and what is upgraded is never given back.
	conn, err := to.Pool.Dial(r.Context(), to.Port)
	if err != nil {
		// What comes behind an upgrade may be of its stream, and is no next request.
		w.Header().Set("Connection", "close")
		if r.Context().Err() != nil {
			return ErrClientGone
		}
		return err
	}
	raw, stream, err := http.NewResponseController(w).Hijack()
	if err != nil {
		conn.Abort()
		return err
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		conn.Abort()
		_ = raw.Close()
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	client := waitWith(raw, stream.Reader, cancel)
	said, err := ask(ctx, r, to, conn, body)
	early := client.stop()
	if ctx.Err() != nil {
		// It left.
		conn.Abort()
		relay.Reset(raw)
		return nil
	}
	cancel()
	switch {
	case err != nil:
		_ = raw.SetWriteDeadline(time.Now().Add(leaveTime))
		_, _ = raw.Write(refuse(err))
		leave(raw)
	case said.StatusCode == http.StatusSwitchingProtocols:
		join(raw, early, conn, said)
	default:
		passRefusal(raw, conn, said)
	}
	return nil
}

// contentOf reads a body that is small enough to be held, and leaves r with one that can be read again.
func contentOf(r *http.Request) (body []byte, isWhole bool, err error) {
	if !HasBody(r) {
		return nil, true, nil
	}
	if r.ContentLength > maxEarlyBytes {
		return nil, false, nil
	}
	body, err = io.ReadAll(io.LimitReader(r.Body, maxEarlyBytes+1))
	if err != nil {
		return nil, false, err
	}
	if len(body) > maxEarlyBytes {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
		return nil, false, nil
	}
	// Whoever sends the request to another place reads it once more.
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, true, nil
}

// ask returns with the head of the final answer.
func ask(ctx context.Context, r *http.Request, to To, conn *upstream.Conn, body []byte) (*http.Response, error) {
	defer context.AfterFunc(ctx, conn.Abort)()
	err := conn.WriteHead(append(upgradeHeadOf(r, to, len(body)), body...), false)
	for range maxInterim {
		if err != nil {
			break
		}
		var said *http.Response
		said, err = conn.ReadHead(r.Method == http.MethodHead)
		if err == nil && (said.StatusCode == http.StatusSwitchingProtocols || said.StatusCode >= 200) {
			return said, nil
		}
	}
	conn.Abort()
	return nil, ErrLost
}

func join(raw net.Conn, early []byte, conn *upstream.Conn, said *http.Response) {
	head := rawHead(said, "Connection: Upgrade\r\nUpgrade: "+said.Header.Get("Upgrade")+"\r\n")
	if _, err := raw.Write(head); err != nil {
		conn.Abort()
		relay.Reset(raw)
		return
	}
	ahead, _ := conn.Reader.Peek(conn.Reader.Buffered())
	// The reader and its buffer are not kept for as long as the connection lives.
	relay.Join(relay.Side{Conn: raw, Ahead: early}, relay.Side{Conn: conn.Detach(), Ahead: bytes.Clone(ahead)}, conn.Abort)
}

// passRefusal: an ordinary answer, after which the connection ends.
func passRefusal(raw net.Conn, conn *upstream.Conn, said *http.Response) {
	defer conn.Close()
	more := "Connection: close\r\n"
	if said.ContentLength >= 0 {
		more += fmt.Sprintf("Content-Length: %d\r\n", said.ContentLength)
	}
	if _, err := raw.Write(rawHead(said, more)); err != nil {
		relay.Reset(raw)
		return
	}
	if _, err := io.Copy(raw, said.Body); err != nil {
		relay.Reset(raw)
		return
	}
	leave(raw)
}

// leave: after its last answer a client ends its side as well. One that does not is not waited for, nor listened to.
func leave(raw net.Conn) {
	if half, ok := raw.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = raw.SetReadDeadline(time.Now().Add(leaveTime))
	_, _ = io.Copy(io.Discard, raw)
	_ = raw.Close()
}

func rawHead(said *http.Response, more string) []byte {
	var head bytes.Buffer
	_, reason, _ := strings.Cut(said.Status, " ")
	fmt.Fprintf(&head, "HTTP/1.1 %03d %s\r\n", said.StatusCode, reason)
	endToEnd(said.Header, func(name string, values []string) {
		for _, value := range values {
			line(&head, name, value)
		}
	})
	head.WriteString(more + "\r\n")
	return head.Bytes()
}

// waiting is a client that waits for the answer to its upgrade. Only by reading is it seen that it has left.
type waiting struct {
	raw    net.Conn
	reader *bufio.Reader
	early  []byte
	done   chan struct{}
}

func waitWith(raw net.Conn, reader *bufio.Reader, onLeft func()) *waiting {
	client := &waiting{raw: raw, reader: reader, done: make(chan struct{})}
	go func() {
		defer close(client.done)
		if err := client.read(); err != nil {
			onLeft()
		}
	}()
	return client
}

func (c *waiting) read() error {
	piece := make([]byte, 4<<10)
	for len(c.early) < maxEarlyBytes {
		n, err := c.reader.Read(piece)
		c.early = append(c.early, piece[:n]...)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stop returns what it has sent; the rest is the caller's to read.
func (c *waiting) stop() []byte {
	_ = c.raw.SetReadDeadline(time.Unix(1, 0))
	<-c.done
	_ = c.raw.SetReadDeadline(time.Time{})
	ahead, _ := c.reader.Peek(c.reader.Buffered())
	return append(c.early, ahead...)
}
