package command

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"aenv/native/internal/keeper/logfile"
	"aenv/native/internal/keeper/proc"
)

func newTestRunner(t *testing.T) *Runner {
	t.Helper()
	table, err := proc.NewTable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	logs, err := logfile.NewBounder(filepath.Join(t.TempDir(), "journal"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(logs.Close)
	runner, err := NewRunner(table, logs)
	if err != nil {
		t.Fatal(err)
	}
	return runner
}

func shell(script string) []string { return []string{"sh", "-c", script} }

func run(t *testing.T, r *Runner, spec Spec) Result {
	t.Helper()
	result, err := r.Run(spec)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(raw), ") Z ")
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for range 1000 {
		if condition() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not so after 10 s: %s", what)
}

func TestRunGivesInputAndReturnsOutput(t *testing.T) {
	dir := t.TempDir()
	result := run(t, newTestRunner(t), Spec{
		Argv:  shell(`cat; pwd >&2; printf %s "$ONE$HOME" >&2; exit 3`),
		Env:   map[string]string{"ONE": "1"},
		Dir:   dir,
		Stdin: []byte("in\x00put"),
	})
	if string(result.Stdout) != "in\x00put" || string(result.Stderr) != dir+"\n1" || result.Exit.Code != 3 {
		t.Errorf("stdout %q, stderr %q, %+v", result.Stdout, result.Stderr, result.Exit)
	}
}

func TestRunRefusesWhatCannotBeStarted(t *testing.T) {
	r := newTestRunner(t)
	for name, spec := range map[string]Spec{
		"unknown program": {Argv: []string{"no-such-program"}},
		"missing folder":  {Argv: []string{"true"}, Dir: "/no/such/folder"},
		"no netns":        {Argv: []string{"true"}, NetnsPath: "/no/such/netns"},
	} {
		if _, err := r.Run(spec); err == nil || errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.Run(Spec{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no argv: %v", err)
	}
}

func TestRunDoesNotWaitForAGrandchildThatHoldsThePipe(t *testing.T) {
	started := time.Now()
	result := run(t, newTestRunner(t), Spec{Argv: shell("sleep 30 & echo $!")})
	pid, err := strconv.Atoi(strings.TrimSpace(string(result.Stdout)))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(started); took > 5*time.Second || !alive(pid) {
		t.Errorf("took %s, grandchild alive: %v", took, alive(pid))
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

func TestTimeoutKillsTheProcessGroup(t *testing.T) {
	result := run(t, newTestRunner(t), Spec{Argv: shell("sleep 60 & echo $!; wait"), Timeout: 200 * time.Millisecond})
	pid, err := strconv.Atoi(strings.TrimSpace(string(result.Stdout)))
	if err != nil {
		t.Fatal(err)
	}
	if !result.TimedOut || result.Exit.Signal != int(syscall.SIGKILL) || result.Exit.Code != -1 {
		t.Errorf("got %+v", result)
	}
	until(t, "the grandchild is gone", func() bool { return !alive(pid) })
}

func TestOutputIsBounded(t *testing.T) {
	result := run(t, newTestRunner(t), Spec{Argv: shell("head -c 9000000 /dev/zero; echo end >&2")})
	if len(result.Stdout) != outputLimit || !result.Truncated || string(result.Stderr) != "end\n" {
		t.Errorf("%d bytes, truncated %v, stderr %q", len(result.Stdout), result.Truncated, result.Stderr)
	}
}

func TestUnreadInputDoesNotHoldTheCommand(t *testing.T) {
	result := run(t, newTestRunner(t), Spec{Argv: shell("exit 0"), Stdin: make([]byte, 4<<20)})
	if result.Exit.Code != 0 {
		t.Errorf("got %+v", result.Exit)
	}
}

func TestLogFileServesWhatTheCommandLeavesRunning(t *testing.T) {
	dir := t.TempDir()
	log, gate := filepath.Join(dir, "log"), filepath.Join(dir, "gate")
	result := run(t, newTestRunner(t), Spec{
		Argv:    shell("echo one; (while [ ! -e " + gate + " ]; do sleep 0.02; done; echo two >&2) &"),
		LogFile: log,
	})
	if len(result.Stdout) != 0 {
		t.Errorf("stdout %q", result.Stdout)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "both lines are in the log", func() bool {
		raw, _ := os.ReadFile(log)
		return string(raw) == "one\ntwo\n"
	})
}

func TestNetns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	r := newTestRunner(t)
	held := run(t, r, Spec{Argv: shell("unshare -n sleep 30 & echo $!")})
	pid, err := strconv.Atoi(strings.TrimSpace(string(held.Stdout)))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	netns := fmt.Sprintf("/proc/%d/ns/net", pid)
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var want string
	until(t, "the namespace exists", func() bool {
		want, err = os.Readlink(netns)
		return err == nil && want != home
	})
	ask := []string{"readlink", "/proc/self/ns/net"}
	if inside := run(t, r, Spec{Argv: ask, NetnsPath: netns}); strings.TrimSpace(string(inside.Stdout)) != want {
		t.Errorf("inside: %s, want %s", inside.Stdout, want)
	}
	if after := run(t, r, Spec{Argv: ask}); strings.TrimSpace(string(after.Stdout)) != home {
		t.Errorf("afterwards: %s, want %s", after.Stdout, home)
	}
}
