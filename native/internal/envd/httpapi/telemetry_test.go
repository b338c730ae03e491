package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"aenv/native/internal/envd/logbook"
)

type telemetry struct {
	Metrics map[string]float64 `json:"metrics"`
	Entries [][]any            `json:"entries"`
	More    bool               `json:"more"`
}

func (b *bench) telemetry(body, key string) telemetry {
	b.t.Helper()
	got := b.do("POST", "/telemetry", strings.NewReader(body), "X-Init-Key", key)
	var read telemetry
	if err := json.Unmarshal([]byte(got.body), &read); got.status != 200 || err != nil {
		b.t.Fatalf("%+v %v", got, err)
	}
	return read
}

func (t telemetry) texts() []string {
	texts := []string{}
	for _, e := range t.Entries {
		fields := e[4].(map[string]any)
		texts = append(texts, fmt.Sprintf("%v %v %v: %v", e[1], e[2], fields["event_type"], e[3]))
	}
	return texts
}

// last is the id of the last entry.
func (t telemetry) last() string {
	return fmt.Sprintf("%.0f", t.Entries[len(t.Entries)-1][0].(float64))
}

func awaiting(after string) string { return `{"await":true,"after":` + after + `}` }

func (b *bench) shell(script string) answer {
	message, _ := json.Marshal(map[string]any{"process": map[string]any{"cmd": "/bin/sh", "args": []string{"-c", script}}, "stdin": false})
	frame := append([]byte{0, 0, 0, byte(len(message) >> 8), byte(len(message))}, message...)
	return b.do("POST", "/process.Process/Start", strings.NewReader(string(frame)), "Content-Type", "application/connect+json", "X-Access-Token", "secret")
}

func TestTelemetryIsForTheNode(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1","sandboxId":"i1"}`)
	for _, headers := range [][]string{nil, {"X-Access-Token", "secret"}, {"X-Init-Key", "k0"}} {
		if got := b.do("POST", "/telemetry", strings.NewReader(`{}`), headers...); got.status != 401 {
			t.Errorf("with %v: %+v", headers, got)
		}
	}
	for _, body := range []string{`{`, `{"after":"x"}`, `{"after":1e99}`} {
		if got := b.do("POST", "/telemetry", strings.NewReader(body), "X-Init-Key", "k1"); got.status != 400 {
			t.Errorf("%s: %+v", body, got)
		}
	}
	if got := b.do("GET", "/telemetry", nil, "X-Init-Key", "k1"); got.status != 405 {
		t.Errorf("GET: %+v", got)
	}
}

func TestTelemetryTellsWhatProcessesDid(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1","sandboxId":"i1"}`)
	if got := b.shell(`echo out; printf 'bad\377' >&2; exit 3`); got.status != 200 {
		t.Fatalf("%+v", got)
	}
	read := b.telemetry(`{}`, "k1")
	want := []string{
		"info envd agent_ready: The agent is ready",
		"info process process_start: Process with pid N started",
		"info process stderr: bad\uFFFD",
		"info process stdout: out",
		"info process process_end: Process with pid N ended",
	}
	texts := read.texts()
	if len(texts) != len(want) {
		t.Fatalf("%q", texts)
	}
	// The two streams are read side by side.
	if texts[2] == want[3] {
		texts[2], texts[3] = texts[3], texts[2]
	}
	start, end := read.Entries[1][4].(map[string]any), read.Entries[4][4].(map[string]any)
	for i := range want {
		if want[i] != strings.ReplaceAll(texts[i], fmt.Sprint("pid ", start["pid"]), "pid N") {
			t.Errorf("%q, not %q", texts[i], want[i])
		}
	}
	if !strings.HasPrefix(start["command"].(string), "/bin/sh -c echo out") || start["user"] != "root" || start["cwd"] == "" {
		t.Errorf("%v", start)
	}
	if end["pid"] != start["pid"] || end["exit_code"] != "3" || end["status"] != "exit status 3" || end["stdout_bytes"] != "4" || end["stderr_bytes"] != "4" || end["pty_bytes"] != nil {
		t.Errorf("%v", end)
	}
	if rest := b.telemetry(`{"after":`+read.last()+`}`, "k1"); len(rest.Entries) != 0 || rest.More {
		t.Errorf("%+v", rest)
	}
}

func TestTelemetryAwaitsTheNextEntry(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1","sandboxId":"i1"}`)
	last := b.telemetry(`{}`, "k1").last()
	await := func(after string) <-chan error {
		told := make(chan error, 1)
		go func() {
			got, err := b.try("POST", "/telemetry", strings.NewReader(awaiting(after)), "X-Init-Key", "k1")
			if err == nil && got.status != 204 {
				err = fmt.Errorf("%+v", got)
			}
			told <- err
		}()
		return told
	}
	if err := <-await("0"); err != nil {
		t.Fatal(err)
	}
	told := await(last)
	select {
	case err := <-told:
		t.Fatalf("told of nothing: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	b.shell("echo something")
	if err := <-told; err != nil {
		t.Fatal(err)
	}
	if rest := b.telemetry(`{"after":`+last+`}`, "k1"); len(rest.Entries) == 0 {
		t.Fatal("what was awaited is not there")
	}
}

func TestTelemetryAwaitsNothingForWhoHasLeft(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1","sandboxId":"i1"}`)
	last := b.telemetry(`{}`, "k1").last()
	begun, ended := make(chan struct{}), make(chan struct{})
	agent := b.api.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		close(begun)
		agent.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	// One that waits on ends with the test.
	defer b.api.Log.Add(logbook.Info, "test", "the end", nil)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	request, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/telemetry", strings.NewReader(awaiting(last)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Init-Key", "k1")
	go func() {
		<-begun
		leave()
	}()
	if got, err := server.Client().Do(request); err == nil {
		got.Body.Close()
		t.Fatal(got.Status)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("it waits on")
	}
}

// The same sandbox goes on with its log after a resume; another one, made of its state, begins with none.
func TestTheLogIsTheSandboxesOwn(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1","sandboxId":"i1"}`)
	b.shell("echo secret of i1")
	b.init(`{"accessToken":"secret","initKey":"k2","sandboxId":"i1"}`, "X-Init-Key", "k1")
	if texts := b.telemetry(`{}`, "k2").texts(); len(texts) != 5 {
		t.Errorf("%q", texts)
	}
	b.init(`{"initKey":"k3","sandboxId":"i2"}`, "X-Init-Key", "k2")
	if texts := b.telemetry(`{}`, "k3").texts(); len(texts) != 1 || !strings.Contains(texts[0], "agent_ready") {
		t.Errorf("%q", texts)
	}
}

func TestMetricsAreTrue(t *testing.T) {
	b := newBench(t)
	b.init(`{"initKey":"k1"}`)
	b.shell(`timeout 0.5 sh -c 'while :; do :; done'`)
	if none := b.telemetry(`{}`, "k1"); none.Metrics != nil {
		t.Errorf("nobody asked for %v", none.Metrics)
	}
	busy := b.telemetry(`{"metrics":true}`, "k1").Metrics
	for _, name := range []string{"mem_total", "mem_used", "disk_total", "disk_used", "cpu_count"} {
		if busy[name] <= 0 {
			t.Errorf("%s: %v", name, busy)
		}
	}
	// Of all CPUs: one busy for half a second, since the init.
	if least := 50 / busy["cpu_count"]; busy["cpu_used_pct"] < least || busy["cpu_used_pct"] > 100 {
		t.Errorf("busy: %v %%, at least %v expected", busy["cpu_used_pct"], least)
	}
	// What others ask does not shorten the node's interval.
	b.shell(`timeout 0.5 sh -c 'while :; do :; done'`)
	for range 3 {
		b.do("GET", "/metrics", nil, "X-Access-Token", "secret")
		time.Sleep(10 * time.Millisecond)
	}
	if again := b.telemetry(`{"metrics":true}`, "k1").Metrics; again["cpu_used_pct"] < 40/again["cpu_count"] {
		t.Errorf("after others had asked: %v %%", again["cpu_used_pct"])
	}
}
