package edge

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const sandboxID = "iabcdefghij0123456789"

// world is an edge between an aenvd that knows one sandbox, whose address is this machine's loopback, and a service in it.
type world struct {
	edge    net.Listener
	server  *Edge
	service *httptest.Server
	// apiSocket is where the edge looks for the API; nobody is there.
	apiSocket string
}

func open(t *testing.T, service http.HandlerFunc) *world {
	t.Helper()
	folder := t.TempDir()
	routesSocket, apiSocket := filepath.Join(folder, "routes.sock"), filepath.Join(folder, "aenvd.sock")
	serveAenvd(t, routesSocket)
	edge := New(Options{RoutesSocket: routesSocket, APISocket: apiSocket, Forwarder: "1:1", MaxConnections: 100,
		Log: slog.New(slog.DiscardHandler)})
	listener, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- edge.Serve(listener) }()
	w := &world{edge: listener, server: edge, service: httptest.NewServer(service), apiSocket: apiSocket}
	t.Cleanup(func() {
		edge.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		w.service.Close()
	})
	return w
}

func serveAenvd(t *testing.T, socket string) {
	t.Helper()
	route := map[string]any{"sandboxId": sandboxID, "generation": 1, "address": "127.0.0.1"}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /routes", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"snapshot": map[string]any{"epoch": "one", "revision": 1, "routes": []any{route}}})
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /routes/ack", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("GET /routes/of/{id}", func(w http.ResponseWriter, r *http.Request) {
		answer := map[string]any{"epoch": "one", "revision": 1}
		if r.PathValue("id") == sandboxID {
			answer["route"] = route
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

func (w *world) host() string {
	_, port, _ := net.SplitHostPort(w.service.Listener.Addr().String())
	return port + "-" + sandboxID + ".e2b.test"
}

// ask sends a request for the service by a client of Go's own. The answer's body has been read: it is text.
func (w *world) ask(ctx context.Context, client *http.Client, method, path string, body io.Reader) (answer *http.Response, text string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+w.edge.Addr().String()+path, body)
	if err != nil {
		return nil, "", err
	}
	request.Host = w.host()
	if answer, err = client.Do(request); err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	return answer, string(said), err
}

// clientOfHTTP2 speaks it in clear text.
func clientOfHTTP2(t *testing.T) *http.Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

type frame struct {
	kind, flags byte
	length      int
}

const (
	dataFrame    = 0
	headersFrame = 1
	endStream    = 1
)

// frames asks for a path over HTTP/2 and returns the frames of the answer.
func (w *world) frames(t *testing.T, path string) []frame {
	t.Helper()
	conn, err := net.Dial("tcp", w.edge.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	// :method GET, :scheme http, then :path and :authority as literals of the static table's names.
	head := append([]byte{0x82, 0x86, 0x04, byte(len(path))}, path...)
	head = append(append(head, 0x01, byte(len(w.host()))), w.host()...)
	request := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	// A stream's window of 16 MiB, and the connection's the same.
	request = append(request, 0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0)
	request = append(request, 0, 0, 4, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0)
	request = append(request, 0, 0, byte(len(head)), headersFrame, 0x5, 0, 0, 0, 1)
	if _, err := conn.Write(append(request, head...)); err != nil {
		t.Fatal(err)
	}
	var seen []frame
	for {
		var header [9]byte
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			t.Fatalf("after %v: %v", seen, err)
		}
		length := int(header[0])<<16 | int(binary.BigEndian.Uint16(header[1:3]))
		if _, err := io.CopyN(io.Discard, conn, int64(length)); err != nil {
			t.Fatal(err)
		}
		if binary.BigEndian.Uint32(header[5:]) != 1 {
			continue
		}
		seen = append(seen, frame{header[3], header[4], length})
		if header[4]&endStream != 0 {
			return seen
		}
	}
}

func TestHTTP2AnswersHaveNoEmptyFrames(t *testing.T) {
	w := open(t, func(w http.ResponseWriter, r *http.Request) {
		var bytes, pieces int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d/%d", &pieces, &bytes)
		if r.URL.Query().Has("sized") {
			w.Header().Set("Content-Length", fmt.Sprint(bytes*pieces))
		}
		for range pieces {
			_, _ = io.WriteString(w, strings.Repeat("x", bytes))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	})
	for _, path := range []string{"/1/1?sized", "/3/10?sized", "/1/100000?sized", "/5/300000?sized", "/3/10", "/2/100000"} {
		frames := w.frames(t, path)
		for at, frame := range frames {
			isLast := at == len(frames)-1
			if frame.kind == dataFrame && frame.length == 0 && (!isLast || strings.Contains(path, "sized")) {
				t.Errorf("%s: frame %d of %d is empty", path, at, len(frames))
			}
		}
	}
}

func TestAHeadThatNeverComesWholeIsNotWaitedForForLong(t *testing.T) {
	edge := New(Options{RoutesSocket: "/nonexistent", APISocket: "/nonexistent", Forwarder: "1:1", MaxConnections: 1, Log: slog.New(slog.DiscardHandler)})
	defer edge.Close()
	if limit := edge.server.ReadHeaderTimeout; limit <= 0 || limit > time.Minute {
		t.Errorf("a head may take %s", limit)
	}
	if edge.server.MaxHeaderBytes > 1<<20 {
		t.Errorf("a head may have %d bytes", edge.server.MaxHeaderBytes)
	}
	if edge.server.ReadTimeout != 0 || edge.server.WriteTimeout != 0 {
		t.Error("bodies have a time limit")
	}
}

func TestBodiesThatNobodyTakesHoldLittleAndLeaveRoomForOthers(t *testing.T) {
	if connectionWindow > 2<<20 || streamWindow*4 > connectionWindow {
		t.Errorf("a connection may hold %d bytes, a stream of it %d", connectionWindow, streamWindow)
	}
	release := make(chan struct{})
	defer close(release)
	w := open(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stalled" {
			<-release
		}
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
	})
	client := clientOfHTTP2(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	post := func(path string, body io.Reader) (string, error) {
		_, text, err := w.ask(ctx, client, http.MethodPost, path, body)
		return text, err
	}
	var stalled sync.WaitGroup
	defer stalled.Wait()
	defer cancel()
	for range 3 {
		body := &countingReader{}
		stalled.Go(func() { _, _ = post("/stalled", body) })
		for before := int64(-1); before != body.n.Load() || before == 0; time.Sleep(100 * time.Millisecond) {
			before = body.n.Load()
		}
	}
	const bytes = 8 << 20
	if text, err := post("/taken", io.LimitReader(&countingReader{}, bytes)); text != fmt.Sprint(bytes) || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// countingReader has no end.
type countingReader struct{ n atomic.Int64 }

func (c *countingReader) Read(into []byte) (int, error) {
	c.n.Add(int64(len(into)))
	return len(into), nil
}

func TestNoAddressAloneShutsOthersOut(t *testing.T) {
	limit := newLimit(8, slog.New(slog.DiscardHandler))
	enter := func(address string) bool {
		return limit.enter(peerOf(&net.TCPAddr{IP: net.ParseIP(address)}))
	}
	for range 4 {
		if !enter("192.0.2.1") {
			t.Fatal("half of all is one's own")
		}
	}
	if enter("192.0.2.1") {
		t.Error("an address has more than half")
	}
	if !enter("2001:db8::1") || !enter("2001:db8::2") || limit.peers[peerOf(&net.TCPAddr{IP: net.ParseIP("2001:db8::3")})] != 2 {
		t.Error("addresses of one network of IPv6 are several clients")
	}
	if !peerOf(&net.TCPAddr{IP: net.IPv6loopback}).Addr().IsLoopback() {
		t.Error("the loopback of IPv6 is lost")
	}
	if !enter("127.0.0.1") || !enter("::1") || enter("::1") {
		t.Error("a proxy on this host has not what is left")
	}
	for _, address := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1", "2001:db8::9", "2001:db8::9", "127.0.0.1", "::1"} {
		limit.leave(peerOf(&net.TCPAddr{IP: net.ParseIP(address)}))
	}
	if limit.open != 0 || len(limit.peers) != 0 {
		t.Errorf("%d clients of %d addresses are left", limit.open, len(limit.peers))
	}
}

func TestConnectionsLeaveFilesForThemselves(t *testing.T) {
	for _, files := range []uint64{64, 1024, 20_000, 1_048_576} {
		if most := uint64(limitOf(files)); most <= files/4 || 2*most >= files-10 {
			t.Errorf("%d connections of %d files", most, files)
		}
	}
	if limitOf(1<<63) != mostConnections {
		t.Error("without a limit there is none")
	}
}
