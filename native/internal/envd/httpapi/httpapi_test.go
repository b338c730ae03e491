package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/logbook"
	"aenv/native/internal/envd/pieces"
	"aenv/native/internal/envd/process"
	"aenv/native/internal/envd/reaper"
	"aenv/native/internal/envd/runclock"
	"aenv/native/internal/envd/users"
)

var children *reaper.Reaper

func TestMain(m *testing.M) {
	children = reaper.New()
	code := withCage(m.Run)
	children.Close()
	os.Exit(code)
}

type bench struct {
	t      *testing.T
	server *httptest.Server
	api    *Server
	dir    string
}

// newBench serves an agent on HTTP/1.1 and HTTP/2 without TLS, as the program does. before is done to it while nobody is served.
func newBench(t *testing.T, before ...func(*bench)) *bench {
	t.Helper()
	who := identity.NewStore(users.Database{})
	who.Accept("", "", identity.Identity{DefaultUser: "root"})
	clock := &runclock.Clock{}
	files := filesystem.NewService(who, clock)
	t.Cleanup(files.Close)
	api := &Server{Identity: who, Process: process.NewService(who, children, clock), Filesystem: files, Log: &logbook.Book{}}
	api.Process.Log = api.Log
	server := httptest.NewUnstartedServer(api.Handler())
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Listener = pieces.Listener{Listener: server.Listener}
	b := &bench{t, server, api, t.TempDir()}
	for _, change := range before {
		change(b)
	}
	server.Start()
	t.Cleanup(server.Close)
	return b
}

// impatient gives up a transfer that does not move for so long.
func impatient(idle time.Duration) func(*bench) {
	return func(b *bench) { b.api.files.idle = idle }
}

type answer struct {
	status int
	body   string
	header http.Header
}

func (b *bench) do(method, path string, body io.Reader, headers ...string) answer {
	b.t.Helper()
	got, err := b.try(method, path, body, headers...)
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

// try is do for any goroutine; it gives up with the test.
func (b *bench) try(method, path string, body io.Reader, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.server.URL+path, body)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, string(text), res.Header}, err
}

func (b *bench) init(body string, headers ...string) int {
	b.t.Helper()
	return b.do("POST", "/init", strings.NewReader(body), headers...).status
}

// errorOf reads the plain error shape.
func (a answer) errorOf(t *testing.T) (int, string) {
	t.Helper()
	var body struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("%d %q is no JSON error", a.status, a.body)
	}
	return body.Code, body.Message
}

func TestHealthInitAndToken(t *testing.T) {
	b := newBench(t)
	if got := b.do("GET", "/health", nil); got.status != 204 || got.body != "" {
		t.Errorf("health: %+v", got)
	}
	if got := b.init(`{"accessToken":"secret","initKey":"k1","envVars":{"A":"1","B":"2"},"timestamp":"2026-01-02T03:04:05.6Z","unknown":{}}`); got != 204 {
		t.Fatalf("first init: %d", got)
	}
	for _, path := range []string{"/envs", "/metrics", "/files?path=/etc/hosts", "/process.Process/List"} {
		method := "GET"
		if strings.HasSuffix(path, "List") {
			method = "POST"
		}
		for _, headers := range [][]string{nil, {"X-Access-Token", "wrong"}} {
			got := b.do(method, path, nil, headers...)
			if code, message := got.errorOf(t); got.status != 401 || code != 401 || message == "" {
				t.Errorf("%s with %v: %+v", path, headers, got)
			}
		}
	}
	if got := b.do("GET", "/health", nil); got.status != 204 {
		t.Errorf("health with a token set: %d", got.status)
	}
	if got := b.do("GET", "/envs", nil, "X-Access-Token", "secret"); got.status != 200 || got.body != `{"A":"1","B":"2"}` {
		t.Errorf("envs: %+v", got)
	}
	// SNAP-07: the next init replaces everything, and needs the key.
	if got := b.init(`{"envVars":{"A":"3"}}`); got != 401 {
		t.Errorf("init without the key: %d", got)
	}
	if got := b.init(`{"envVars":{"A":"3"},"timestamp":1767323045600}`, "X-Init-Key", "k1"); got != 204 {
		t.Errorf("init with the key: %d", got)
	}
	if got := b.do("GET", "/envs", nil); got.status != 200 || got.body != `{"A":"3"}` {
		t.Errorf("envs after the second init: %+v", got)
	}
	if got := b.init(`{"envVars":{"A=":"3"}}`, "X-Init-Key", "k1"); got != 400 {
		t.Errorf("bad variable: %d", got)
	}
	var metrics map[string]float64
	if err := json.Unmarshal([]byte(b.do("GET", "/metrics", nil).body), &metrics); err != nil || metrics["mem_total"] <= 0 || metrics["disk_total"] <= 0 || metrics["ts"] <= 0 {
		t.Errorf("metrics: %v %v", metrics, err)
	}
	// API-02
	if got := b.do("GET", "/nothing", nil); got.status != 404 {
		t.Errorf("unknown route: %+v", got)
	}
	if got := b.do("POST", "/health", nil); got.status != 405 {
		t.Errorf("wrong method: %+v", got)
	}
}

func TestMemoryIsForTheNode(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret","initKey":"k1"}`)
	for body, want := range map[string]int{`{"hostKilled":2}`: 204, `{"hostKilled":-1}`: 400, `{`: 400} {
		if got := b.do("POST", "/memory", strings.NewReader(body), "X-Init-Key", "k1"); got.status != want {
			t.Errorf("%s: %+v", body, got)
		}
		if got := b.do("POST", "/memory", strings.NewReader(body), "X-Access-Token", "secret"); got.status != 401 {
			t.Errorf("%s without the key: %+v", body, got)
		}
	}
}

func TestBrowsers(t *testing.T) {
	b := newBench(t)
	b.init(`{"accessToken":"secret"}`)
	got := b.do("OPTIONS", "/process.Process/List", nil, "Origin", "https://x.test", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-access-token")
	if got.status != 204 || got.header.Get("Access-Control-Allow-Headers") != "x-access-token" || got.header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("preflight: %+v", got)
	}
}

// The wire as the SDKs speak it: JSON envelope, identity codings, no compressed answer.
func TestRawJSONStream(t *testing.T) {
	b := newBench(t)
	message := []byte(`{"process":{"cmd":"/bin/sh","args":["-c","printf hi; exit 3"],"unknownField":1},"stdin":false}`)
	frame := append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	got := b.do("POST", "/process.Process/Start", bytes.NewReader(frame), "Content-Type", "application/connect+json",
		"Connect-Protocol-Version", "1", "Connect-Content-Encoding", "identity", "Connect-Accept-Encoding", "gzip", "Connect-Timeout-Ms", "60000", "Keepalive-Ping-Interval", "50")
	if got.status != 200 || got.header.Get("Content-Type") != "application/connect+json" || strings.Contains(got.header.Get("Connect-Content-Encoding"), "gzip") {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{`"start"`, `"stdout":"aGk="`, `"exitCode":3`, `"exited":true`, `"status":"exit status 3"`, "\x02\x00\x00\x00\x02{}"} {
		if !strings.Contains(strings.ReplaceAll(got.body, ": ", ":"), want) {
			t.Errorf("%q lacks %q", got.body, want)
		}
	}
	unary := b.do("POST", "/filesystem.Filesystem/Stat", strings.NewReader(`{"path":"/no/such"}`), "Content-Type", "application/json",
		"Content-Encoding", "identity", "Accept-Encoding", "identity", "Connect-Timeout-Ms", "60000")
	if unary.status != 404 || !strings.Contains(unary.body, `"code":"not_found"`) || !strings.Contains(unary.body, "path '/no/such' does not exist") {
		t.Errorf("%+v", unary)
	}
}

// Media types may have parameters; answers have the plain type that was asked for.
func TestMediaTypesWithParameters(t *testing.T) {
	b := newBench(t)
	frame := "\x00\x00\x00\x00\x2c" + `{"process":{"cmd":"/bin/true"},"stdin":false}`
	frame = frame[:4] + string(rune(len(frame)-5)) + frame[5:]
	for _, c := range []struct{ path, kind, body, want string }{
		{"/filesystem.Filesystem/Stat", "application/json; charset=utf-8", `{"path":"/"}`, "application/json"},
		{"/filesystem.Filesystem/Stat", "Application/JSON;charset=UTF8", `{"path":"/","more":[1]}`, "application/json"},
		{"/filesystem.Filesystem/Stat", "application/proto; x=y", "\x0a\x01/", "application/proto"},
		{"/process.Process/Start", "application/connect+json; charset=utf-8", frame, "application/connect+json"},
	} {
		got := b.do("POST", c.path, strings.NewReader(c.body), "Content-Type", c.kind, "Connect-Protocol-Version", "1")
		if got.status != 200 || got.header.Get("Content-Type") != c.want {
			t.Errorf("%s: %+v", c.kind, got)
		}
	}
}

// A message that is too large for its call is refused, and the connection's next one is not.
func TestMessagesTooLargeAreRefused(t *testing.T) {
	b := newBench(t)
	big := `{"path":"` + strings.Repeat("a", messageMaxBytes) + `"}`
	got := b.do("POST", "/filesystem.Filesystem/Stat", strings.NewReader(big), "Content-Type", "application/json")
	if got.status != 429 || !strings.Contains(got.body, "resource_exhausted") {
		t.Errorf("%d %.200s", got.status, got.body)
	}
	frame := "\x00\xff\xff\xff\xff{"
	got = b.do("POST", "/process.Process/Start", strings.NewReader(frame), "Content-Type", "application/connect+json", "Connect-Protocol-Version", "1")
	if got.status != 200 || !strings.Contains(got.body, `"error"`) {
		t.Errorf("%+v", got)
	}
}

func TestBinaryCodecOverHTTP2(t *testing.T) {
	b := newBench(t)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	client := processconnect.NewProcessClient(&http.Client{Transport: transport}, b.server.URL)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	in, err := client.Start(ctx, connect.NewRequest(&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", "kill -9 $$"}}}))
	if err != nil {
		t.Fatal(err)
	}
	var end *processpb.ProcessEvent_EndEvent
	for in.Receive() {
		end = in.Msg().GetEvent().GetEnd()
	}
	if in.Err() != nil || end.GetExitCode() != -1 || end.GetStatus() != "signal: killed" {
		t.Fatalf("%v %v", end, in.Err())
	}
}
