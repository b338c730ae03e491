package process

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/envd/logbook"
	"aenv/native/internal/envd/stream"
)

// rehearse starts a script as nobody's, and returns what its stream said.
func (b *bench) rehearse(script, timeoutMs string) string {
	b.t.Helper()
	body := `{"process":{"cmd":"/bin/sh","args":["-c","` + script + `"]},"stdin":false}`
	frame := string([]byte{0, 0, 0, 0, byte(len(body))}) + body
	r := httptest.NewRequest("POST", processconnect.ProcessStartProcedure, strings.NewReader(frame))
	r.Header.Set("Content-Type", "application/connect+json")
	r.Header.Set("Connect-Timeout-Ms", timeoutMs)
	_, handler := processconnect.NewProcessHandler(b.service)
	said := httptest.NewRecorder()
	stream.Wrap(handler).ServeHTTP(said, r.WithContext(Rehearsing(r.Context())))
	return said.Body.String()
}

// A rehearsal leaves nothing that a client could find, whether it ends by itself or has to be ended.
func TestARehearsalLeavesNothing(t *testing.T) {
	for script, outcome := range map[string]string{"echo it; echo was": `"exited":true`, "echo it; sleep 60 & sleep 60": "deadline_exceeded"} {
		b := newBench(t)
		b.service.Log = &logbook.Book{}
		started := time.Now()
		if said := b.rehearse(script, "500"); !strings.Contains(said, `"start":`) || !strings.Contains(said, outcome) {
			t.Errorf("%s: it said %q", script, said)
		}
		if took := time.Since(started); took > 10*time.Second {
			t.Errorf("%s: it took %v", script, took)
		}
		if list, err := b.client.List(context.Background(), connect.NewRequest(&processpb.ListRequest{})); err != nil || len(list.Msg.Processes) > 0 {
			t.Errorf("%s: %v is listed (%v)", script, list, err)
		}
		table := &b.service.table
		table.mu.Lock()
		if len(table.byPID) != 0 || len(table.ended) != 0 {
			t.Errorf("%s: the table knows %v and %v", script, table.byPID, table.ended)
		}
		table.mu.Unlock()
		if kept := table.kept.Load(); kept != 0 {
			t.Errorf("%s: %d bytes of output are kept", script, kept)
		}
		if entries, _ := b.service.Log.Take(0, 1<<20); len(entries) != 0 {
			t.Errorf("%s: the log tells of it: %s", script, entries)
		}
	}
}
