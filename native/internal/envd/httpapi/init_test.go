package httpapi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aenv/native/internal/envd/process"
)

// The hook runs once for each start, before the answer, and what it does wrong is no error of the init.
func TestTheHookRunsOnceForEachRestore(t *testing.T) {
	b := newBench(t)
	path := filepath.Join(t.TempDir(), "hook")
	b.api.OnRestore = process.Hook{Path: path, Tag: "hook", Wait: 20 * time.Second}
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
