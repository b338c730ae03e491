package httpapi

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aenv/native/internal/envd/guest"
	"aenv/native/internal/envd/process"
)

// An init that is said again replaces nothing: a program that watches the generation is not woken by what it knows.
func TestAnInitThatIsSaidAgainLeavesTheGeneration(t *testing.T) {
	root := t.TempDir()
	b := newBench(t, func(b *bench) { b.api.Guest = &guest.Guest{Root: root} })
	const body = `{"sandboxId":"i1","generation":%d,"generationId":%q,"initKey":"k"}`
	file := func(generation int, id string) os.FileInfo {
		t.Helper()
		if got := b.init(fmt.Sprintf(body, generation, id), "X-Init-Key", "k"); got != 204 {
			t.Fatal(got)
		}
		info, err := os.Stat(root + "/run/aenv/generation")
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := file(1, "bb")
	if again := file(1, "bb"); !os.SameFile(first, again) {
		t.Error("it was replaced by the same")
	}
	if next := file(2, "cc"); os.SameFile(first, next) {
		t.Error("another generation was not told")
	}
}

// An init that nobody waits for has a command run by all that a request passes, of which the later owner of the machine finds nothing.
func TestARehearsalLeavesOnlyThatTheAgentIsReady(t *testing.T) {
	b := newBench(t)
	before := lastPID(t)
	if got := b.init(`{"sandboxId":"i1","initKey":"k","accessToken":"nobody's","rehearse":true}`, "X-Init-Key", "k"); got != 204 {
		t.Fatal(got)
	}
	if lastPID(t) == before {
		t.Error("no process was started")
	}
	entries, _ := b.api.Log.Take(0, 1<<20)
	if len(entries) != 1 || !strings.Contains(string(entries[0]), "The agent is ready") {
		t.Errorf("the log has %s", entries)
	}
}

// What is rehearsed is a command that says something and comes to its end.
func TestARehearsalIsAWholeRequest(t *testing.T) {
	b := newBench(t)
	said := httptest.NewRecorder()
	b.api.handler.ServeHTTP(said, b.api.rehearsed(context.Background()))
	user := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%d\n", os.Getuid()))
	for _, part := range []string{`"start":`, fmt.Sprintf(`"stdout":%q`, user), `"exited":true`} {
		if !strings.Contains(said.Body.String(), part) {
			t.Errorf("it does not say %s: %d %q", part, said.Code, said.Body)
		}
	}
	if entries, _ := b.api.Log.Take(0, 1<<20); len(entries) != 0 {
		t.Errorf("the log tells of it: %s", entries)
	}
}

// lastPID is the number that the kernel gave last.
func lastPID(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	return fields[len(fields)-1]
}

// The hook runs once for each start, before the answer, and what it does wrong is no error of the init.
func TestTheHookRunsOnceForEachRestore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hook")
	b := newBench(t, func(b *bench) { b.api.OnRestore = process.Hook{Path: path, Tag: "hook", Wait: 20 * time.Second} })
	script := "#!/bin/sh\necho $AENV_SANDBOX_ID $AENV_GENERATION $AENV_GENERATION_ID >> $0.said; [ $AENV_GENERATION != 3 ]\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	start := func(sandbox string, generation int, id string) {
		t.Helper()
		body := fmt.Sprintf(`{"sandboxId":%q,"generation":%d,"generationId":%q,"initKey":"k"}`, sandbox, generation, id)
		if got := b.init(body, "X-Init-Key", "k"); got != 204 {
			t.Fatalf("%s: %d", body, got)
		}
	}
	start("template", 0, "aa")
	start("i1", 1, "bb")
	start("i1", 1, "bb")
	start("i1", 3, "cc")
	if got := b.init(`{"sandboxId":"i1","initKey":"k"}`, "X-Init-Key", "k"); got != 204 {
		t.Fatal(got)
	}
	said, err := os.ReadFile(path + ".said")
	if want := "i1 1 bb\ni1 3 cc\n"; string(said) != want || err != nil {
		t.Fatalf("%q %v", said, err)
	}
	if texts := strings.Join(b.telemetry(`{}`, "k").texts(), "\n"); !strings.Contains(texts, "warn envd hook_failed: "+path+" failed: exit status 1") {
		t.Fatalf("%s", texts)
	}
	for _, body := range []string{`{"generation":-1}`, `{"generationId":"a b"}`, `{"generationId":"` + strings.Repeat("a", 65) + `"}`} {
		if got := b.init(body, "X-Init-Key", "k"); got != 400 {
			t.Errorf("%s: %d", body, got)
		}
	}
}
