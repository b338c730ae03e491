package edge

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"aenv/native/internal/edge/answer"
)

// heads of requests that fit, and of such that do not.
var heads = []struct {
	name string
	want int
	// fields are name, value, name, value, …
	fields []string
}{
	{"many short fields", 200, many(150, "x-%d", "v")},
	{"a large cookie", 200, []string{"cookie", strings.Repeat("c", 60<<10)}},
	{"too many names", 431, many(201, "x-%d", "v")},
	{"too many of one name", 431, many(2000, "x", "v")},
	{"too many trailers announced", 431, []string{"trailer", strings.Join(names(201), ",")}},
	{"too large a field", 431, []string{"x", strings.Repeat("v", 80<<10)}},
	{"too large in all", 431, many(100, "x-%d", strings.Repeat("v", 800))},
}

func many(count int, name, value string) []string {
	var fields []string
	for at := range count {
		if strings.Contains(name, "%d") {
			fields = append(fields, fmt.Sprintf(name, at), value)
		} else {
			fields = append(fields, name, value)
		}
	}
	return fields
}

func names(count int) []string {
	var all []string
	for at := range count {
		all = append(all, fmt.Sprint("x-", at))
	}
	return all
}

func TestHeadsThatCostMuchAreRefusedBeforeAnythingIsForwarded(t *testing.T) {
	for _, head := range heads {
		t.Run(head.name, func(t *testing.T) {
			t.Parallel()
			var served atomic.Int32
			w := openToBoth(t, func(http.ResponseWriter, *http.Request) { served.Add(1) })
			expect := func(protocol string, status int) {
				t.Helper()
				if got := served.Swap(0); status != head.want || (got == 1) != (head.want == 200) {
					t.Errorf("%s: %d, served %d times; want %d", protocol, status, got, head.want)
				}
			}
			for _, host := range []string{w.host(), "api"} {
				var text strings.Builder
				for at := 0; at < len(head.fields); at += 2 {
					text.WriteString(head.fields[at] + ": " + head.fields[at+1] + "\r\n")
				}
				said := w.say(t, "POST / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"+text.String()+"\r\n0\r\n\r\n")
				expect("HTTP/1.1", statusOf(t, said))
				c := w.http2(t)
				c.head(t, 1, true, append([]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", host}, head.fields...)...)
				status, _ := c.answer(t, 1)
				if status == 0 && strings.HasPrefix(head.name, "too large") {
					// One that goes on behind its limit ends the connection.
					status = 431
				}
				expect("HTTP/2", status)
			}
		})
	}
}

func TestAnswersWhoseHeadsCostMuchAreNotListenedTo(t *testing.T) {
	w := openToBoth(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/many" {
			w.Header()["X"] = make([]string, 300)
		} else {
			w.Header().Set("X", strings.Repeat("v", 100<<10))
		}
		w.WriteHeader(http.StatusOK)
	})
	for _, path := range []string{"/many", "/large"} {
		for _, more := range []string{"Connection: close\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\n"} {
			if said := w.say(t, "GET "+path+" HTTP/1.1\r\nHost: "+w.host()+"\r\n"+more+"\r\n"); statusOf(t, said) != http.StatusBadGateway {
				t.Errorf("%s, %q: %.200q", path, more, said)
			}
		}
	}
}

func TestStreamsOfAConnectionAreFew(t *testing.T) {
	w := openToBoth(t, func(http.ResponseWriter, *http.Request) {})
	c := w.http2(t)
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if settings, ok := frame.(*http2.SettingsFrame); ok {
			if most, isSaid := settings.Value(http2.SettingMaxConcurrentStreams); !isSaid || most > 300 {
				t.Errorf("%d streams", most)
			}
			break
		}
	}
	edge := New(Options{RoutesSocket: "/nonexistent", APISocket: "/nonexistent", Forwarder: "1:1", MaxConnections: 1, Log: slog.New(slog.DiscardHandler)})
	defer edge.Close()
	config := edge.server.HTTP2
	if config.SendPingTimeout <= 300*time.Second || config.PingTimeout <= 0 || config.WriteByteTimeout <= 0 {
		t.Errorf("%+v", config)
	}
}

// timedWriter notes the deadline that its first bytes had.
type timedWriter struct {
	*httptest.ResponseRecorder
	deadline, atWrite time.Time
}

func (w *timedWriter) SetWriteDeadline(deadline time.Time) error {
	w.deadline = deadline
	return nil
}

func (w *timedWriter) Write(piece []byte) (int, error) {
	w.atWrite = w.deadline
	return w.ResponseRecorder.Write(piece)
}

func TestAnswersOfTheEdgesOwnAreNotWaitedForForLong(t *testing.T) {
	w := &timedWriter{ResponseRecorder: httptest.NewRecorder()}
	refuse(w, httptest.NewRequest(http.MethodGet, "/", nil), answer.NotFound(sandboxID))
	if w.atWrite.IsZero() || time.Until(w.atWrite) > 30*time.Second || w.deadline != w.atWrite {
		t.Errorf("to be taken until %s, in the end %s", w.atWrite, w.deadline)
	}
}
