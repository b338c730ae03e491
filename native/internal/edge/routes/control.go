package routes

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// reconnectWait is between attempts to reach an aenvd that is being restarted.
	reconnectWait = 100 * time.Millisecond
	// patience is how long after its first failure a question is repeated while aenvd is away.
	patience      = 10 * time.Second
	answerTimeout = 10 * time.Second
	wakeTimeout   = 60 * time.Second
	// maxLineBytes bounds one line of the feed: the first one is the whole table.
	maxLineBytes = 64 << 20
)

// RefusedError: aenvd was asked and said no, or nothing in time. Repeating it at once would not help.
type RefusedError struct {
	// Status is aenvd's; 0 when it did not answer.
	Status int
	what   string
}

func (e *RefusedError) Error() string { return e.what }

// control asks aenvd over its routes socket.
type control struct {
	forwarder string
	// Each kind has connections of its own: a wake may wait for a slot, the slot for an acknowledgement.
	feeding, looking, waking *http.Client
}

func newControl(socket, forwarder string) *control {
	return &control{forwarder: forwarder, feeding: clientOf(socket, 4), looking: clientOf(socket, 32), waking: clientOf(socket, 128)}
}

func clientOf(socket string, connections int) *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}
	return &http.Client{Transport: &http.Transport{
		DialContext: dial, MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, DisableCompression: true,
	}}
}

func (c *control) close() {
	for _, client := range []*http.Client{c.feeding, c.looking, c.waking} {
		client.CloseIdleConnections()
	}
}

// follow calls take with every line for as long as aenvd lives.
func (c *control) follow(ctx context.Context, take func(feedLine) error) error {
	answer, err := send(ctx, c.feeding, http.MethodGet, "/routes?"+url.Values{"forwarder": {c.forwarder}}.Encode())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("aenvd answered %d to the route feed", answer.StatusCode)
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		var line feedLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return err
		}
		if err := take(line); err != nil {
			return err
		}
	}
	return lines.Err()
}

// acknowledge fails when it did not arrive, or was for another aenvd than the one there. busy are sandboxes that were to stand
// still and are in use.
func (c *control) acknowledge(ctx context.Context, epoch string, revision int, busy []string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	query := url.Values{"forwarder": {c.forwarder}, "epoch": {epoch}, "revision": {strconv.Itoa(revision)}, "busy": busy}
	answer, err := send(ctx, c.feeding, http.MethodPost, "/routes/ack?"+query.Encode())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		return fmt.Errorf("aenvd answered %d to an acknowledgement", answer.StatusCode)
	}
	return nil
}

func (c *control) lookUp(ctx context.Context, id string) (lookedUp, error) {
	return ask(ctx, c.looking, http.MethodGet, "/routes/of/"+id, answerTimeout)
}

// Questions that have aenvd do something: resume a paused sandbox, let one go on that stands still.
const (
	wakePath  = "/wake/"
	rousePath = "/rouse/"
)

// wake asks one of these.
func (c *control) wake(ctx context.Context, path, id string) (lookedUp, error) {
	return ask(ctx, c.waking, http.MethodPost, path+id, wakeTimeout)
}

// ask repeats its question while aenvd is not there.
func ask(ctx context.Context, client *http.Client, method, path string, timeout time.Duration) (lookedUp, error) {
	var giveUp time.Time
	for {
		found, err := askOnce(ctx, client, method, path, timeout)
		if _, refused := err.(*RefusedError); err == nil || refused || ctx.Err() != nil {
			return found, err
		}
		if giveUp.IsZero() {
			giveUp = time.Now().Add(patience)
		} else if time.Now().After(giveUp) {
			return found, err
		}
		if err := sleep(ctx, reconnectWait); err != nil {
			return found, err
		}
	}
}

func askOnce(ctx context.Context, client *http.Client, method, path string, timeout time.Duration) (found lookedUp, err error) {
	inTime, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := send(inTime, client, method, path)
	if err == nil {
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			_, _ = io.Copy(io.Discard, answer.Body)
			return found, &RefusedError{answer.StatusCode, fmt.Sprintf("aenvd answered %d on %s", answer.StatusCode, path)}
		}
		err = json.NewDecoder(answer.Body).Decode(&found)
	}
	if inTime.Err() != nil && ctx.Err() == nil {
		err = &RefusedError{0, fmt.Sprintf("no answer in %s on %s", timeout, path)}
	}
	return found, err
}

func send(ctx context.Context, client *http.Client, method, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://aenvd"+path, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(request)
}

func sleep(ctx context.Context, wait time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
		return nil
	}
}
