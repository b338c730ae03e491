package process

import (
	"context"
	"testing"

	"aenv/native/internal/envd/logbook"
)

// A rehearsal runs a command, and leaves nothing that a client could find: neither the process nor its end or output.
func TestRehearsalRunsAndCannotBeFound(t *testing.T) {
	b := newBench(t)
	b.service.Log = &logbook.Book{}
	if !b.service.Rehearse(context.Background()) {
		t.Fatal("no command came to its end")
	}
	if entries, _ := b.service.Log.Take(0, 1<<20); len(entries) != 0 {
		t.Fatalf("the log tells of it: %s", entries)
	}
	b.service.table.mu.Lock()
	defer b.service.table.mu.Unlock()
	if len(b.service.table.byPID) != 0 || len(b.service.table.ended) != 0 {
		t.Fatalf("the table still knows %v and %v", b.service.table.byPID, b.service.table.ended)
	}
	if kept := b.service.table.kept.Load(); kept != 0 {
		t.Fatalf("%d bytes of output are kept", kept)
	}
}
