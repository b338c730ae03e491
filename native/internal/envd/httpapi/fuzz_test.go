package httpapi

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/gen/filesystem/filesystemconnect"
	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/logbook"
	"aenv/native/internal/envd/process"
	"aenv/native/internal/envd/runclock"
	"aenv/native/internal/envd/users"
)

// callTime is how long a call may stream before its client goes away.
const callTime = 5 * time.Millisecond

// cageVariable names the folder that processes which try made-up input are locked into.
const cageVariable = "ENVD_FUZZ_CAGE"

// withCage runs all tests, with a cage if they are to search for inputs.
func withCage(run func() int) int {
	if !hasFlag("-test.fuzz=") || hasFlag("-test.fuzzworker") {
		return run()
	}
	cage, err := os.MkdirTemp("", "envd-fuzz-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(cage)
	if err := os.Setenv(cageVariable, cage); err != nil {
		panic(err)
	}
	return run()
}

func hasFlag(prefix string) bool {
	return slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, prefix) })
}

// confine locks the process that tries made-up input into the cage: the agent does what it is told, as root.
// Inputs that are in this file, and run with all tests, do no harm.
func confine() {
	if !hasFlag("-test.fuzzworker") {
		return
	}
	err := unix.Chroot(os.Getenv(cageVariable))
	if err == nil {
		err = os.Chdir("/")
	}
	if err == nil {
		err = os.MkdirAll("/tmp", 0o777)
	}
	if err != nil {
		panic(err)
	}
}

// newFuzzed is an agent whose only user, to whose home all paths in this file are relative, has an empty one.
func newFuzzed(f *testing.F) http.Handler {
	root := f.TempDir()
	for _, folder := range []string{"/etc", "/home"} {
		if err := os.Mkdir(root+folder, 0o755); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/etc/passwd", []byte("root:x:0:0::"+root+"/home:/bin/sh\n"), 0o644); err != nil {
		f.Fatal(err)
	}
	who := identity.NewStore(users.Database{Root: root})
	who.Accept("", "key", identity.Identity{DefaultUser: "root"})
	clock := &runclock.Clock{}
	api := &Server{Identity: who, Process: process.NewService(who, children, clock), Filesystem: filesystem.NewService(who, clock), Log: &logbook.Book{}}
	return api.Handler()
}

// recorder is a client that takes everything.
type recorder struct{ *httptest.ResponseRecorder }

func (recorder) SetReadDeadline(time.Time) error  { return nil }
func (recorder) SetWriteDeadline(time.Time) error { return nil }
func (recorder) EnableFullDuplex() error          { return nil }

// answerTo fails the test when a request makes the agent panic, which it survives, or leaves it with no answer.
func answerTo(t *testing.T, agent http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	ctx, leave := context.WithTimeout(r.Context(), callTime)
	defer leave()
	w := recorder{httptest.NewRecorder()}
	func() {
		defer func() {
			if problem := recover(); problem != nil && problem != http.ErrAbortHandler {
				panic(problem)
			}
		}()
		agent.ServeHTTP(w, r.WithContext(ctx))
	}()
	if strings.Contains(w.Body.String(), "internal error of the agent") {
		t.Fatalf("%s %s made the agent panic", r.Method, r.URL)
	}
	return w.ResponseRecorder
}

// tarOf is an archive of empty files.
func tarOf(headers ...tar.Header) string {
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	for _, header := range headers {
		header.Mode = 0o755
		if err := out.WriteHeader(&header); err != nil {
			panic(err)
		}
	}
	_ = out.Close()
	return packed.String()
}

// Whole requests, as they come over a connection.
func FuzzRequest(f *testing.F) {
	confine()
	archived := tarOf(tar.Header{Name: "t/", Typeflag: tar.TypeDir}, tar.Header{Name: "t/f", Typeflag: tar.TypeReg}, tar.Header{Name: "t/l", Linkname: "f", Typeflag: tar.TypeSymlink})
	for _, seed := range []string{
		"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /files?path=none HTTP/1.1\r\nHost: x\r\nRange: bytes=0-1\r\nAccept-Encoding: gzip\r\n\r\n",
		"POST /files?path=a/b HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 3\r\nX-Metadata-A: b\r\n\r\nabc",
		"POST /files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"4a\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x/z\"\r\n\r\nabc\r\n--b--\r\n0\r\n\r\n",
		"POST /init HTTP/1.1\r\nHost: x\r\nX-Init-Key: key\r\nContent-Length: 23\r\n\r\n{\"envVars\":{\"A\":\"\\u00\"}}",
		"POST /memory HTTP/1.1\r\nHost: x\r\nX-Init-Key: key\r\nContent-Length: 16\r\n\r\n{\"hostKilled\":1}",
		"GET /forward?port=9 HTTP/1.1\r\nHost: x\r\nX-Init-Key: key\r\nConnection: Upgrade\r\nUpgrade: aenv-tcp\r\n\r\nmore",
		"GET /tunnel?port=9 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: aenv-tcp\r\n\r\nmore",
		"GET /tunnel?port=65536 HTTP/1.0\r\nUpgrade: AENV-TCP\r\n\r\n",
		"GET /archive?path=none HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /archive?path=.&username=root HTTP/1.1\r\nHost: x\r\n\r\n",
		fmt.Sprintf("POST /archive?path=. HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(archived), archived),
		"POST /archive?path= HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"POST /telemetry HTTP/1.1\r\nHost: x\r\nX-Init-Key: key\r\nContent-Length: 28\r\n\r\n{\"after\":-1,\"metrics\":true}\n",
		"POST /telemetry HTTP/1.1\r\nHost: x\r\nX-Init-Key: key\r\nContent-Length: 30\r\n\r\n{\"after\":9223372036854775807}\n",
		"OPTIONS /envs HTTP/1.1\r\nHost: x\r\nOrigin: y\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	agent := newFuzzed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			t.Skip("this is no request:", err)
		}
		if r.URL.Path == "/memory" && r.Header.Get("X-Init-Key") == "key" {
			t.Skip("to free memory is to kill the largest process there is")
		}
		answerTo(t, agent, r)
	})
}

// Uploads of any media type and coding.
func FuzzUpload(f *testing.F) {
	confine()
	form := "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"m/1\"\r\n\r\nabc\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename*=UTF-8''m%2F2\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n=C3\r\n--b--\r\n"
	f.Add("application/octet-stream", "", "d/a", []byte("abc"))
	f.Add("application/octet-stream", "gzip", "a", zipped([]byte("abc")))
	f.Add("multipart/form-data; boundary=b", "", "", []byte(form))
	f.Add("multipart/form-data; boundary=\"b\"", "identity", "~/x", []byte(form))
	f.Add("multipart/mixed", "br", "\x00", []byte(form))
	agent := newFuzzed(f)
	f.Fuzz(func(t *testing.T, kind, coding, path string, body []byte) {
		r := httptest.NewRequest("POST", "/files", bytes.NewReader(body))
		r.URL.RawQuery = url.Values{"path": {path}}.Encode()
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Content-Encoding", coding)
		if got := answerTo(t, agent, r); got.Code == 200 && path != "" {
			back := answerTo(t, agent, httptest.NewRequest("GET", "/files?"+r.URL.RawQuery, nil))
			if back.Code != 200 {
				t.Fatalf("what was uploaded to %q cannot be read: %d %s", path, back.Code, back.Body)
			}
		}
	})
}

// No query opens a file but one that the token has signed.
func FuzzSignature(f *testing.F) {
	confine()
	const token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	f.Add("path=hello.txt&username=user&signature=v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E")
	f.Add("path=x&signature=v1_&signature_expiration=0")
	f.Add("path=x&signature_expiration=-1&signature_expiration=99999999999999999999&signature=")
	f.Add("%zz&signature=;")
	now := time.Unix(1_700_000_000, 0)
	f.Fuzz(func(t *testing.T, query string) {
		r := &http.Request{Method: "GET", URL: &url.URL{Path: "/files", RawQuery: query}, Header: http.Header{}}
		err := checkFileAccess(r, token, "write", now)
		if err == nil {
			t.Fatalf("%q opens a file for writing", query)
		}
	})
}

var procedures = []string{
	processconnect.ProcessListProcedure, processconnect.ProcessStartProcedure, processconnect.ProcessConnectProcedure,
	processconnect.ProcessUpdateProcedure, processconnect.ProcessSendInputProcedure, processconnect.ProcessStreamInputProcedure,
	processconnect.ProcessSendSignalProcedure, processconnect.ProcessCloseStdinProcedure,
	filesystemconnect.FilesystemStatProcedure, filesystemconnect.FilesystemMakeDirProcedure, filesystemconnect.FilesystemMoveProcedure,
	filesystemconnect.FilesystemListDirProcedure, filesystemconnect.FilesystemRemoveProcedure, filesystemconnect.FilesystemWatchDirProcedure,
	filesystemconnect.FilesystemCreateWatcherProcedure, filesystemconnect.FilesystemGetWatcherEventsProcedure,
	filesystemconnect.FilesystemRemoveWatcherProcedure,
}

var codecs = []string{"application/json", "application/proto", "application/connect+json", "application/connect+proto", "application/grpc", "application/grpc-web+json"}

// Messages of every procedure, in every codec, in an envelope or as they are.
func FuzzCall(f *testing.F) {
	confine()
	messages := map[int]string{
		1:  `{"process":{"cmd":"/no/such","args":["a"],"envs":{"A":"b"},"cwd":"w"},"pty":{"size":{"cols":1,"rows":2}},"tag":"t","stdin":false,"unknown":[{}]}`,
		2:  `{"process":{"pid":1}}`,
		3:  `{"process":{"tag":"t"},"pty":{"size":{"cols":4294967295}}}`,
		4:  `{"process":{"pid":4294967295},"input":{"stdin":"aGk="}}`,
		5:  `{"start":{"process":{"pid":1}}}`,
		6:  `{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}`,
		8:  `{"path":"u/../x"}`,
		10: `{"source":"a","destination":"~/b"}`,
		11: `{"path":"","depth":4294967295}`,
		13: `{"path":"w","recursive":true,"includeEntry":true,"allowNetworkMounts":true}`,
		15: `{"watcherId":"w"}`,
	}
	for procedure := range procedures {
		message := messages[procedure]
		if message == "" {
			message = `{"process":{"pid":1},"path":"none","watcherId":"x"}`
		}
		for codec := range codecs {
			f.Add(byte(procedure), byte(codec), true, "", []byte(message))
			f.Add(byte(procedure), byte(codec), false, "gzip", []byte("\x0a\x03\x08\x01\x12"))
		}
	}
	agent := newFuzzed(f)
	f.Fuzz(func(t *testing.T, procedure, codec byte, enveloped bool, coding string, body []byte) {
		if enveloped {
			head := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
			body = append(head, body...)
		}
		r := httptest.NewRequest("POST", procedures[int(procedure)%len(procedures)], io.NopCloser(bytes.NewReader(body)))
		r.Header.Set("Content-Type", codecs[int(codec)%len(codecs)])
		r.Header.Set("Connect-Protocol-Version", "1")
		r.Header.Set("Content-Encoding", coding)
		r.Header.Set("Connect-Content-Encoding", coding)
		answerTo(t, agent, r)
	})
}
