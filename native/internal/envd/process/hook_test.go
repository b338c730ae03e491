package process

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/logbook"
)

// hook writes the program of a hook.
func hook(t *testing.T, script string, mode os.FileMode) Hook {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(path, []byte(script), mode); err != nil {
		t.Fatal(err)
	}
	return Hook{Path: path, Tag: "hook", Wait: 20 * time.Second}
}

func TestAHookRunsAsRootWithTheSandboxsEnvironmentBeforeAnybodyElse(t *testing.T) {
	b := newBench(t)
	b.service.Log = &logbook.Book{}
	b.who.Accept("", "", identity.Identity{DefaultUser: "nobody", SandboxID: "iabc", EnvVars: map[string]string{"OF_SANDBOX": "1"}})
	h := hook(t, "#!/bin/sh\necho $(id -u) $PWD $AENV_GENERATION $OF_SANDBOX $E2B_SANDBOX_ID > $(dirname $0)/said; echo logged\n", 0o700)
	if err := b.service.RunHook(context.Background(), h, map[string]string{"AENV_GENERATION": "7"}); err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(filepath.Join(filepath.Dir(h.Path), "said"))
	if err != nil || string(said) != "0 / 7 1 iabc\n" {
		t.Fatalf("%q %v", said, err)
	}
	eventually(t, "what it wrote to be logged", func() bool {
		entries, _ := b.service.Log.Take(0, 1<<20)
		return slices.ContainsFunc(entries, func(entry json.RawMessage) bool { return strings.Contains(string(entry), `"logged"`) })
	})
}

func TestAHookThatCannotDoItsWorkIsTold(t *testing.T) {
	b := newBench(t)
	for script, want := range map[string]string{
		"#!/bin/sh\nexit 3\n":        "failed: exit status 3",
		"#!/bin/sh\nkill -9 $$\n":    "failed: signal: killed",
		"#!/no/such/interpreter\n\n": "was not run: ",
	} {
		if err := b.service.RunHook(context.Background(), hook(t, script, 0o755), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", script, err)
		}
	}
	if err := b.service.RunHook(context.Background(), hook(t, "#!/bin/sh\n", 0o644), nil); err == nil || !strings.Contains(err.Error(), "chmod +x") {
		t.Errorf("not executable: %v", err)
	}
	for _, path := range []string{"", filepath.Join(t.TempDir(), "none"), "/etc/passwd/none"} {
		if err := b.service.RunHook(context.Background(), Hook{Path: path}, nil); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestAHookThatTakesTooLongGoesOnWithoutAnybodyWaiting(t *testing.T) {
	b := newBench(t)
	h := hook(t, "#!/bin/sh\nuntil [ -e $0.go ]; do sleep 0.05; done; touch $0.done\n", 0o755)
	h.Wait = 300 * time.Millisecond
	if err := b.service.RunHook(context.Background(), h, nil); err == nil || !strings.Contains(err.Error(), "goes on as process") {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.Path+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hook to end its work", func() bool { _, err := os.Stat(h.Path + ".done"); return err == nil })
	// One that leaves a child behind holds nobody up: what it started may be a service.
	if err := b.service.RunHook(context.Background(), hook(t, "#!/bin/sh\nsleep 3 &\n", 0o755), nil); err != nil {
		t.Fatal(err)
	}
}
