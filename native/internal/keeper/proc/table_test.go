package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func newTestTable(t *testing.T) *Table {
	t.Helper()
	table, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	return table
}

func startShell(t *testing.T, table *Table, script string) *Process {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := table.Start(Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"},
		Files: [3]*os.File{null, null, null}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func awaitDone(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case <-p.Done():
		return p.Exit()
	case <-time.After(10 * time.Second):
		t.Fatalf("process %d has not ended", p.Pid())
		return Exit{}
	}
}

// awaitEvent returns the first event of a process after seq.
func awaitEvent(t *testing.T, ring *Ring, seq uint64, pid int) Event {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		events, _, more := ring.After(seq)
		for _, e := range events {
			if e.Pid == pid {
				return e
			}
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("no exit of process %d was told", pid)
		}
	}
}

// pidIn waits for a script to write a pid into a file.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	for range 500 {
		raw, _ := os.ReadFile(path)
		if text, whole := strings.CutSuffix(string(raw), "\n"); whole {
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s was not written", path)
	return 0
}

func TestNoExitIsLostAmongManyShortChildren(t *testing.T) {
	table := newTestTable(t)
	var work sync.WaitGroup
	for i := range 200 {
		work.Go(func() {
			if exit := awaitDone(t, startShell(t, table, fmt.Sprintf("exit %d", i%100))); exit.Code != i%100 {
				t.Errorf("child %d: exit code %d", i, exit.Code)
			}
		})
	}
	work.Wait()
	if last := table.Exits().Last(); last != 0 {
		t.Errorf("%d events for children nobody tracks", last)
	}
}

func TestSignalIsReported(t *testing.T) {
	table := newTestTable(t)
	p := startShell(t, table, "exec sleep 60")
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exit := awaitDone(t, p); exit.Code != -1 || exit.Signal != int(syscall.SIGKILL) {
		t.Errorf("got %+v", exit)
	}
}

func TestOrphansAreReapedAndTold(t *testing.T) {
	table := newTestTable(t)
	file := filepath.Join(t.TempDir(), "pid")
	awaitDone(t, startShell(t, table, "(sleep 0.2; exit 7) & echo $! > "+file))
	orphan := pidIn(t, file)
	event := awaitEvent(t, table.Exits(), 0, orphan)
	if event.Exit.Code != 7 || event.StartTicks == 0 {
		t.Errorf("got %+v", event)
	}
	if _, err := readStat(orphan); err == nil {
		t.Errorf("process %d is still there", orphan)
	}
}

func TestTrackTellsOfProcessesThatAreNoChildren(t *testing.T) {
	table := newTestTable(t)
	file := filepath.Join(t.TempDir(), "pid")
	parent := startShell(t, table, "sleep 60 & echo $! > "+file+"; while :; do sleep 60; done")
	pid := pidIn(t, file)
	st, err := readStat(pid)
	if err != nil {
		t.Fatal(err)
	}
	if !table.Track(pid, st.startTicks) || !table.Track(pid, 0) {
		t.Fatal("a living process counts as gone")
	}
	if table.Track(pid, st.startTicks+1) {
		t.Error("another start time counts as the same process")
	}
	seq := table.Exits().Last()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Its parent does not reap it: only the pidfd can tell.
	event := awaitEvent(t, table.Exits(), seq, pid)
	if event.StartTicks != st.startTicks || event.Exit.Code != -1 {
		t.Errorf("got %+v", event)
	}
	if err := parent.SignalGroup(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, parent)
}

func TestTrackOfAnOrphanGivesItsExitCodeOnce(t *testing.T) {
	table := newTestTable(t)
	dir := t.TempDir()
	file, gate := filepath.Join(dir, "pid"), filepath.Join(dir, "gate")
	awaitDone(t, startShell(t, table, "(while [ ! -e "+gate+" ]; do sleep 0.02; done; exit 9) & echo $! > "+file))
	pid := pidIn(t, file)
	if !table.Track(pid, 0) {
		t.Fatal("a living orphan counts as gone")
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := awaitEvent(t, table.Exits(), 0, pid)
	if first.Exit.Code != 9 {
		t.Errorf("got %+v", first)
	}
	// Asked again about what is gone, the table remembers.
	if table.Track(pid, first.StartTicks) {
		t.Error("counts as alive")
	}
	if again := awaitEvent(t, table.Exits(), first.Seq, pid); again.Exit.Code != 9 || again.Seq != first.Seq+1 {
		t.Errorf("got %+v after %+v", again, first)
	}
}

func TestRingSaysWhatItForgot(t *testing.T) {
	ring := newRing()
	for i := range ringSize + 10 {
		ring.add(i+2, 1, Exit{})
	}
	if _, complete, _ := ring.After(9); complete {
		t.Error("event 10 is forgotten, and not said so")
	}
	events, complete, _ := ring.After(10)
	if !complete || len(events) != ringSize || events[0].Seq != 11 || events[ringSize-1].Seq != ringSize+10 {
		t.Errorf("complete %v, %d events", complete, len(events))
	}
}

// The keeper is given scores it may set without a capability, in place of those it would have with one.
func TestOnlyWhatIsShelteredHasTheKeepersScore(t *testing.T) {
	table := newTestTable(t)
	own := func() string {
		raw, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(raw))
	}
	before := own()
	table.score.Children = table.score.Own + 100
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for sheltered, want := range map[bool]int{false: table.score.Children, true: table.score.Own} {
		path := filepath.Join(t.TempDir(), "score")
		// Of a grandchild: a command starts others at once.
		p, err := table.Start(Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", "(cat /proc/self/oom_score_adj) > " + path},
			Env: []string{"PATH=/usr/bin:/bin"}, Files: [3]*os.File{null, null, null}, Sheltered: sheltered})
		if err != nil {
			t.Fatal(err)
		}
		awaitDone(t, p)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(raw)); got != strconv.Itoa(want) {
			t.Errorf("sheltered %v: score %s, want %d", sheltered, got, want)
		}
		if own() != before {
			t.Errorf("the keeper's own score is %s afterwards, before it was %s", own(), before)
		}
	}
}
