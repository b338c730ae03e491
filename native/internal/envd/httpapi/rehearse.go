package httpapi

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"net/http"

	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/envd/process"
)

// rehearsedScript has the shell start a program and wait for it, as a user's own files mostly do, but reads none of these.
const rehearsedScript = "id -u; :"

// rehearsalMaxMs is how long a rehearsal may take; its process is killed then.
const rehearsalMaxMs = "2000"

// rehearse does what a client and the node will ask for first: what a restored machine does for the first time is slow. A
// command that does nothing is started as the default user, by all that a request passes, and the log is asked for. The process is
// not to be found afterwards, nor in the log. Where there is no such shell, nothing is run.
func (s *Server) rehearse(ctx context.Context) {
	s.handler.ServeHTTP(discard{}, s.rehearsed(ctx))
	s.tell(discard{}, telemetryBody{})
}

// rehearsed is a Start as E2B's JavaScript SDK makes it.
func (s *Server) rehearsed(ctx context.Context) *http.Request {
	message, err := json.Marshal(map[string]any{
		"process": map[string]any{
			"cmd": "/bin/bash", "args": []string{"--noprofile", "--norc", "-c", rehearsedScript}, "cwd": "/",
			"envs": map[string]string{},
		},
		"stdin": false,
	})
	if err != nil {
		panic(err)
	}
	// A message of a stream: flags, length, text.
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	r, err := http.NewRequestWithContext(process.Rehearsing(ctx), http.MethodPost, processconnect.ProcessStartProcedure, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/connect+json")
	r.Header.Set("Connect-Protocol-Version", "1")
	r.Header.Set("Connect-Timeout-Ms", rehearsalMaxMs)
	r.Header.Set(tokenHeader, s.Identity.Current().AccessToken)
	return r
}

// discard is an answer that goes nowhere; its keys are its header's.
type discard http.Header

func (d discard) Header() http.Header { return http.Header(d) }

func (d discard) Write(data []byte) (int, error) { return len(data), nil }

func (d discard) WriteHeader(int) {}

// Flush is asked for by streams.
func (d discard) Flush() {}
