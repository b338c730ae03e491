package service

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

// bench is a group with the folder it works in.
type bench struct {
	*Group
	dir   string
	table *proc.Table
}

func newBench(t *testing.T) bench {
	t.Helper()
	dir := t.TempDir()
	table, err := proc.NewTable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	log := slog.New(slog.DiscardHandler)
	logs, err := logfile.NewBounder(filepath.Join(dir, "journal"), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(logs.Close)
	group, err := NewGroup(table, logs, filepath.Join(dir, "services.json"), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(group.StopAll)
	return bench{group, dir, table}
}

func (b bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b bench) define(name, script string) Definition {
	return Definition{
		Name: name, Argv: []string{"/bin/sh", "-c", script}, LogFile: b.path(name + ".log"), PidFile: b.path(name + ".pid"),
	}
}

// idle is a script that ends on SIGTERM, noting its name.
func (b bench) idle(name string) string {
	return fmt.Sprintf("trap 'echo %s >> %s; exit 0' TERM; echo ready; while :; do sleep 0.02; done", name, b.path("stopped"))
}

func (b bench) apply(t *testing.T, definitions ...Definition) {
	t.Helper()
	if err := b.Apply(definitions); err != nil {
		t.Fatal(err)
	}
}

func (b bench) read(name string) string {
	raw, _ := os.ReadFile(b.path(name))
	return string(raw)
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

func TestServicesStopInReverseOrder(t *testing.T) {
	b := newBench(t)
	names := []string{"one", "two", "three"}
	var definitions []Definition
	for _, name := range names {
		definitions = append(definitions, b.define(name, b.idle(name)))
	}
	b.apply(t, definitions...)
	for i, status := range b.Status() {
		if status.Name != names[i] || status.State != "running" || b.read(status.Name+".pid") != strconv.Itoa(status.Pid)+"\n" {
			t.Errorf("%+v, pid file %q", status, b.read(status.Name+".pid"))
		}
		until(t, "it is ready", func() bool { return b.read(status.Name+".log") == "ready\n" })
	}
	b.StopAll()
	if got := b.read("stopped"); got != "three\ntwo\none\n" {
		t.Errorf("stopped in the order %q", got)
	}
	if left, _ := filepath.Glob(b.path("*.pid")); len(left) > 0 || b.read("services.json") != "" {
		t.Errorf("left: %v, records %q", left, b.read("services.json"))
	}
}

func TestADyingServiceIsStartedAgainEachTimeLater(t *testing.T) {
	b := newBench(t)
	b.apply(t, b.define("dies", "date +%s%N; exit 1"))
	var lines []string
	until(t, "it was started four times", func() bool {
		lines = strings.Fields(b.read("dies.log"))
		return len(lines) >= 4
	})
	last := time.Duration(0)
	for i := range 3 {
		from, _ := strconv.ParseInt(lines[i], 10, 64)
		to, _ := strconv.ParseInt(lines[i+1], 10, 64)
		gap := time.Duration(to - from)
		if gap < firstDelay<<i-20*time.Millisecond || gap < last {
			t.Errorf("start %d came %s after the one before, that %s", i+1, gap, last)
		}
		last = gap
	}
	if status := b.Status()[0]; status.Restarts < 3 {
		t.Errorf("%+v", status)
	}
}

// As on a full disk, which has room again later.
func TestAServiceThatCouldNotBeWrittenDownIsSoLater(t *testing.T) {
	b := newBench(t)
	inTheWay := b.path("late.pid.tmp/x")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	b.apply(t, b.define("late", b.idle("late")))
	if status := b.Status()[0]; status.State != "running" || b.read("late.pid") != "" {
		t.Fatalf("%+v, pid file %q", status, b.read("late.pid"))
	}
	if err := os.RemoveAll(filepath.Dir(inTheWay)); err != nil {
		t.Fatal(err)
	}
	until(t, "it was written down", func() bool {
		return b.read("late.pid") == strconv.Itoa(b.Status()[0].Pid)+"\n"
	})
	if !strings.Contains(b.read("services.json"), "late.pid") {
		t.Errorf("no record: %s", b.read("services.json"))
	}
}

func TestAServiceThatIgnoresSigtermIsKilled(t *testing.T) {
	b := newBench(t)
	d := b.define("deaf", "trap '' TERM; echo ready; while :; do sleep 0.02; done")
	d.StopTimeoutMs = 100
	b.apply(t, d)
	pid := b.Status()[0].Pid
	until(t, "it is ready", func() bool { return b.read("deaf.log") == "ready\n" })
	b.StopAll()
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d: %v", pid, err)
	}
}

func TestApplyReplacesOnlyWhatChanged(t *testing.T) {
	b := newBench(t)
	same, changed, removed := b.define("same", b.idle("same")), b.define("changed", b.idle("changed")), b.define("removed", b.idle("removed"))
	b.apply(t, same, changed, removed)
	before := b.Status()
	changed.Env = map[string]string{"NEW": "1"}
	b.apply(t, b.define("added", b.idle("added")), changed, same)
	after := b.Status()
	if len(after) != 3 || after[0].Name != "added" || after[1].Pid == before[1].Pid || after[1].Restarts != 1 || after[2].Pid != before[0].Pid {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if b.read("removed.pid") != "" {
		t.Error("the removed service still has a pid file")
	}
}

func TestRestart(t *testing.T) {
	b := newBench(t)
	b.apply(t, b.define("one", b.idle("one")))
	before := b.Status()[0].Pid
	pid, err := b.Restart("one")
	if err != nil || pid == before || b.Status()[0].Pid != pid {
		t.Errorf("pid %d → %d, status %+v, %v", before, pid, b.Status()[0], err)
	}
	if _, err := b.Restart("none"); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown name: %v", err)
	}
}

// startOutside starts what an earlier keeper would have left running.
func (b bench) startOutside(t *testing.T, d Definition) *proc.Process {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := b.table.Start(proc.Spec{Path: d.Argv[0], Argv: d.Argv, Env: []string{"PATH=/usr/bin:/bin"}, Files: [3]*os.File{null, null, null}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.PidFile, []byte(strconv.Itoa(p.Pid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestARunningServiceIsTakenUpByItsPidFile(t *testing.T) {
	b := newBench(t)
	d := b.define("one", b.idle("one"))
	earlier := b.startOutside(t, d)
	b.apply(t, d)
	if status := b.Status()[0]; status.Pid != earlier.Pid() || status.Restarts != 0 {
		t.Fatalf("%+v, want pid %d", status, earlier.Pid())
	}
	if err := earlier.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "it was started again", func() bool {
		status := b.Status()[0]
		return status.State == "running" && status.Pid != earlier.Pid()
	})
}

func TestAPidFileThatNamesSomethingElseIsIgnored(t *testing.T) {
	b := newBench(t)
	d := b.define("one", b.idle("one"))
	other := d
	other.Argv = []string{"/bin/sleep", "60"}
	stranger := b.startOutside(t, other)
	b.apply(t, d)
	if status := b.Status()[0]; status.Pid == stranger.Pid() {
		t.Errorf("took up a stranger: %+v", status)
	}
	select {
	case <-stranger.Done():
		t.Error("the stranger was ended")
	default:
	}
	_ = stranger.Signal(syscall.SIGKILL)
	<-stranger.Done()
}

func TestARecordedServiceWithAnotherDefinitionIsReplacedAndAForgottenOneStopped(t *testing.T) {
	b := newBench(t)
	d, gone := b.define("one", b.idle("one")), b.define("gone", b.idle("gone"))
	earlier, forgotten := b.startOutside(t, d), b.startOutside(t, gone)
	for name, p := range map[string]*proc.Process{"one": earlier, "gone": forgotten} {
		rec := record{Pid: p.Pid(), StartTicks: p.StartTicks(), PidFile: b.path(name + ".pid"), Digest: "of an older build"}
		if err := b.records.set(name, rec); err != nil {
			t.Fatal(err)
		}
	}
	b.apply(t, d)
	<-earlier.Done()
	<-forgotten.Done()
	status := b.Status()
	if len(status) != 1 || status[0].State != "running" || status[0].Pid == earlier.Pid() || b.read("gone.pid") != "" {
		t.Errorf("%+v", status)
	}
}
