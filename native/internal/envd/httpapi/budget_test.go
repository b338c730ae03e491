package httpapi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/envd/pieces"
)

// A small message that unfolds to a large one is refused before it does, by all protocols. Clients that would take compressed
// answers, as those of Connect say by default, are served.
func TestCompressedMessagesAreRefused(t *testing.T) {
	b := newBench(t)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	bomb := &processpb.SendInputRequest{Process: &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Tag{Tag: strings.Repeat("x", 1<<20)}}}
	for name, options := range map[string][]connect.ClientOption{
		"connect": nil, "json": {connect.WithProtoJSON()}, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
	} {
		client := processconnect.NewProcessClient(&http.Client{Transport: transport}, b.server.URL, options...)
		if _, err := client.List(context.Background(), connect.NewRequest(&processpb.ListRequest{})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		client = processconnect.NewProcessClient(&http.Client{Transport: transport}, b.server.URL, append(options, connect.WithSendGzip())...)
		if _, err := client.SendInput(context.Background(), connect.NewRequest(bomb)); connect.CodeOf(err) != connect.CodeUnimplemented || !strings.Contains(err.Error(), "gzip") {
			t.Errorf("%s, compressed: %v", name, err)
		}
		in := client.StreamInput(context.Background())
		_ = in.Send(&processpb.StreamInputRequest{})
		if _, err := in.CloseAndReceive(); connect.CodeOf(err) != connect.CodeUnimplemented {
			t.Errorf("%s, in a stream: %v", name, err)
		}
	}
	for _, coding := range []string{"", "gzip"} {
		got := b.do("POST", "/process.Process/Start", bytes.NewReader(envelope(1, zipped([]byte(`{}`)))),
			"Content-Type", "application/connect+json", "Connect-Content-Encoding", coding)
		if got.status != 200 || !strings.Contains(got.body, `"error"`) {
			t.Errorf("an envelope that says it is compressed, with %q: %+v", coding, got)
		}
	}
}

func envelope(flags byte, message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message))), message...)
}

// free is how much of the budget nobody holds.
func (b *budget) free() int64 {
	low, high := int64(0), int64(budgetBytes)
	for low < high {
		middle := (low + high + 1) / 2
		if b.left.TryAcquire(middle) {
			b.left.Release(middle)
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// A message holds as much as it is large, from before most of it is in memory until it has been dealt with.
func TestMessagesHoldTheirSize(t *testing.T) {
	const (
		input, stream = processconnect.ProcessSendInputProcedure, processconnect.ProcessStreamInputProcedure
		start, list   = processconnect.ProcessStartProcedure, processconnect.ProcessListProcedure
		size          = 300 << 10
	)
	message := noise(size)
	// Each step reads that many bytes, 0 to the end; then so many are held.
	type step struct{ read, held int64 }
	for name, c := range map[string]struct {
		procedure, kind string
		body            []byte
		sized           bool
		steps           []step
	}{
		"small":                 {input, "application/json", message[:freeBytes], false, []step{{0, 0}}},
		"sized":                 {input, "application/json", message, true, []step{{freeBytes, 0}, {1, size}, {0, size}}},
		"of unknown length":     {input, "application/proto", message, false, []step{{freeBytes + 1, freeBytes + 1}, {100, 2*freeBytes + 2}, {0, size}}},
		"too large, sized":      {list, "application/json", noise(2 << 20), true, []step{{size, messageMaxBytes}, {0, messageMaxBytes}}},
		"too large, of unknown": {list, "application/json", noise(2 << 20), false, []step{{1<<20 + 1, messageMaxBytes}, {0, messageMaxBytes}}},
		"in an envelope, once":  {start, "application/connect+json", envelope(0, message), false, []step{{5, size}, {size, size}, {0, 0}}},
		"a stream's":            {stream, "application/connect+proto", append(envelope(0, message), envelope(0, message[:10])...), false, []step{{5, size}, {size, size}, {5, 0}, {10, 0}}},
		"gRPC, one of one":      {input, "application/grpc+proto", envelope(0, message), false, []step{{5, size}, {size, size}, {0, size}}},
		"gRPC, a stream's":      {stream, "application/grpc", append(envelope(0, message), envelope(0, message)...), false, []step{{5, size}, {size, size}, {5, size}, {size, size}, {0, 0}}},
		"an endless envelope":   {start, "application/connect+json", []byte("\x00\xff\xff\xff\xff" + string(message)), false, []step{{5, 0}, {size, 0}}},
	} {
		shared := newBudget()
		handler := shared.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for i, step := range c.steps {
				var err error
				if step.read == 0 {
					_, err = io.Copy(io.Discard, r.Body)
				} else {
					_, err = io.CopyN(io.Discard, r.Body, step.read)
				}
				if held := budgetBytes - shared.free(); err != nil || held != step.held {
					t.Errorf("%s, step %d: %d bytes are held, not %d (%v)", name, i, held, step.held, err)
				}
			}
		}))
		r := httptest.NewRequest("POST", c.procedure, bytes.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		if !c.sized {
			r.ContentLength = -1
		}
		handler.ServeHTTP(recorder{httptest.NewRecorder()}, r)
		if free := shared.free(); free != budgetBytes || !shared.growing.TryAcquire(1) {
			t.Errorf("%s: %d bytes are free afterwards", name, free)
		}
	}
}

// Large messages of unknown length pass beside others whose handlers take long, and wait for each other, not for ever.
func TestLargeMessagesPassBesideBusyOnes(t *testing.T) {
	shared := newBudget()
	shared.wait = 200 * time.Millisecond
	busy, release := make(chan struct{}), make(chan struct{})
	handler := shared.wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		}
		if r.URL.Query().Has("busy") {
			busy <- struct{}{}
			<-release
		}
		fmt.Fprint(w, n)
	}))
	b := &bench{t: t, server: httptest.NewUnstartedServer(handler)}
	b.server.Listener = pieces.Listener{Listener: b.server.Listener}
	b.server.Start()
	defer b.server.Close()
	send := func(query string, body io.Reader) answer {
		return b.do("POST", processconnect.ProcessSendInputProcedure+query, body, "Content-Type", "application/proto")
	}
	unsized := func(bytes int64) io.Reader { return io.LimitReader(zeros{}, bytes) }
	answers := make(chan answer, 1)
	go func() { answers <- send("?busy", unsized(100<<10)) }()
	<-busy
	for range 3 {
		if got := send("", unsized(20<<20)); got.body != fmt.Sprint(20<<20) {
			t.Errorf("%+v", got)
		}
	}
	if got := send("", unsized(64<<20)); got.status != 429 || !strings.Contains(got.body, "too many large messages") {
		t.Errorf("more than there is room for: %+v", got)
	}
	close(release)
	if got := <-answers; got.body != fmt.Sprint(100<<10) {
		t.Errorf("%+v", got)
	}
	// One that stops gives its share back, though its client stays.
	body, client := io.Pipe()
	defer client.CloseWithError(errors.New("the test is over"))
	go func() { _, _ = io.Copy(client, unsized(100<<10)) }()
	if got := send("", body); got.status != 429 || !strings.Contains(got.body, "nothing of a large message came") {
		t.Errorf("one that stops: %+v", got)
	}
	if free := shared.free(); free != budgetBytes {
		t.Errorf("%d bytes are free", free)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
