package process

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
)

// attach connects to a process.
func (b *bench) attach(ctx context.Context, pid uint32) *connect.ServerStreamForClient[processpb.ConnectResponse] {
	b.t.Helper()
	in, err := b.client.Connect(ctx, connect.NewRequest(&processpb.ConnectRequest{Process: byPID(pid)}))
	if err != nil {
		b.t.Fatal(err)
	}
	return in
}

// drainAttached reads a Connect stream to its end, or until enough is true.
func (r *result) drainAttached(in *connect.ServerStreamForClient[processpb.ConnectResponse], enough func() bool) error {
	for !enough() && in.Receive() {
		if err := r.add(in.Msg().GetEvent()); err != nil {
			return err
		}
	}
	return in.Err()
}

func never() bool { return false }

// PROC-04: A stops reading, B attaches and gets live output, the process finishes without any reader, C gets the latest
// output and the end.
func TestPROC04StuckReaderIsDropped(t *testing.T) {
	b := newBench(t)
	b.service.patience = patience{others: 300 * time.Millisecond, alone: time.Minute}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	// A reads its start event and nothing more.
	stuck, aIn := b.begin(ctx, shell("sleep 0.2; head -c 33554432 /dev/zero; read x </tmp/envd-test-gate; head -c 33554432 /dev/zero; echo last"))
	gate := "/tmp/envd-test-gate"
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(gate) })

	// B gets all there is from its attachment on; A delays it by no more than the patience.
	start := time.Now()
	got := &result{}
	if err := got.drainAttached(b.attach(ctx, stuck.pid), func() bool { return got.stdout.Len() >= 32<<20 }); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > b.service.patience.alone/2 {
		t.Fatalf("the stuck client held everyone for %v", took)
	}
	for aIn.Receive() {
	}
	if aIn.Err() == nil {
		t.Fatal("A takes what it got for all there is")
	}
	// Nobody listens any more, and the process ends all the same.
	leave()
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is gone", func() bool { return !exists(int(stuck.pid)) })
	late := &result{}
	if err := late.drainAttached(b.attach(context.Background(), stuck.pid), never); err != nil {
		t.Fatal(err)
	}
	if late.end.GetExitCode() != 0 || !strings.HasSuffix(late.stdout.String(), "\x00last\n") || late.stdout.Len() > historyBytes {
		t.Fatalf("C got %d bytes and %v", late.stdout.Len(), late.end)
	}
}

// A client that is alone and busy with what it has read loses nothing: the process waits for it.
func TestTheOnlyReaderMayTakeItsTime(t *testing.T) {
	b := newBench(t)
	b.service.patience = patience{others: 50 * time.Millisecond, alone: time.Minute}
	got, in := b.begin(context.Background(), shell("head -c 33554432 /dev/zero; echo last"))
	time.Sleep(300 * time.Millisecond)
	if err := got.drain(in); err != nil || got.stdout.Len() != 32<<20+5 {
		t.Fatalf("%d bytes, %v", got.stdout.Len(), err)
	}
}

// Who attaches is told what was said before, once and without a gap, then what comes, then the end; also after the end.
func TestAttachingReplaysTheOutput(t *testing.T) {
	b := newBench(t)
	ctx, leave := context.WithCancel(context.Background())
	first, in := b.begin(ctx, shell("i=0; while [ $i -lt 400 ]; do echo line $i; echo error $i >&2; i=$((i+1)); [ $((i%20)) = 0 ] && sleep 0.02; done; exit 3"))
	want, wantErrors := "", ""
	for i := range 400 {
		want += fmt.Sprintf("line %d\n", i)
		wantErrors += fmt.Sprintf("error %d\n", i)
	}
	for !strings.Contains(first.stdout.String(), "line 50") && in.Receive() {
		if err := first.add(in.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	for range 5 {
		again := &result{}
		if err := again.drainAttached(b.attach(context.Background(), first.pid), never); err != nil {
			t.Fatal(err)
		}
		if again.stdout.String() != want || again.stderr.String() != wantErrors || again.end.GetExitCode() != 3 || again.pid != first.pid {
			t.Fatalf("%d and %d bytes of %d and %d, end %v", again.stdout.Len(), again.stderr.Len(), len(want), len(wantErrors), again.end)
		}
	}
}

// A client that says how far it has come is told the rest only, or what is kept of it.
func TestAttachingAgainGoesOnWhereItBroke(t *testing.T) {
	b := newBench(t)
	text := strings.Repeat("0123456789", 100_000)
	pid := b.run(shell("yes 0123456789 | tr -d '\\n' | head -c 1000000")).pid
	for offset, want := range map[int64]int64{-1: -1, 0: -1, 500_000: -1, 900_000: 900_000, 999_999: 999_999, 1_000_000: 1_000_000, 2_000_000: 1_000_000} {
		req := connect.NewRequest(&processpb.ConnectRequest{Process: byPID(pid)})
		req.Header().Set(offsetHeader, strconv.FormatInt(offset, 10))
		in, err := b.client.Connect(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		got := &result{}
		if err := got.drainAttached(in, never); err != nil {
			t.Fatal(err)
		}
		begins, err := strconv.ParseInt(in.ResponseHeader().Get(offsetHeader), 10, 64)
		if err != nil || want >= 0 && begins != want || got.stdout.String() != text[begins:] || got.end == nil {
			t.Errorf("from %d: %d bytes from %d on, %v", offset, got.stdout.Len(), begins, err)
		}
	}
}

// A cut replay is the last of the output, and begins with a whole character.
func TestReplayIsBounded(t *testing.T) {
	b := newBench(t)
	msg := shell("yes '€€' | head -c 1000002; printf last; sleep 60")
	got, in := b.begin(context.Background(), msg)
	for !strings.HasSuffix(got.stdout.String(), "last") && in.Receive() {
		if err := got.add(in.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
	}
	again := &result{}
	if err := again.drainAttached(b.attach(context.Background(), got.pid), func() bool { return strings.HasSuffix(again.stdout.String(), "last") }); err != nil {
		t.Fatal(err)
	}
	text := again.stdout.String()
	if len(text) > historyBytes || len(text) < historyBytes-2*segmentBytes || !strings.HasSuffix(got.stdout.String(), text) {
		t.Fatalf("%d bytes, which are not the last of the output", len(text))
	}
	if first, _ := utf8.DecodeRuneInString(text); first == utf8.RuneError {
		t.Fatalf("begins with %q", text[:4])
	}
	if err := b.kill(got.pid); err != nil {
		t.Fatal(err)
	}
}

func TestAllHistoriesTogetherAreBounded(t *testing.T) {
	b := newBench(t)
	kept := &b.service.table.kept
	pids := []uint32{}
	for range 40 {
		got, in := b.begin(context.Background(), shell("head -c 400000 /dev/zero; exec sleep 60"))
		for got.stdout.Len() < 400000 && in.Receive() {
			if err := got.add(in.Msg().GetEvent()); err != nil {
				t.Fatal(err)
			}
		}
		pids = append(pids, got.pid)
	}
	if kept.Load() > historiesBytes || kept.Load() < historiesBytes/4 {
		t.Errorf("%d bytes are kept", kept.Load())
	}
	for _, pid := range pids {
		if err := b.kill(pid); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all are retired", func() bool {
		b.service.table.mu.Lock()
		defer b.service.table.mu.Unlock()
		return len(b.service.table.ended) == len(pids)
	})
	b.service.table.mu.Lock()
	for len(b.service.table.ended) > 0 {
		b.service.table.forgetLocked(b.service.table.ended[0])
	}
	b.service.table.mu.Unlock()
	if kept.Load() != 0 {
		t.Errorf("%d bytes are kept of processes that are forgotten", kept.Load())
	}
}

// PROC-05: the client's departure kills nothing; the process is listed and can be attached to.
func TestPROC05ReattachAfterDisconnect(t *testing.T) {
	b := newBench(t)
	ctx, leave := context.WithCancel(context.Background())
	msg := shell("while :; do echo tick; sleep 0.05; done")
	tag := "counter"
	msg.Tag = &tag
	got, _ := b.begin(ctx, msg)
	leave()
	list, err := b.client.List(context.Background(), connect.NewRequest(&processpb.ListRequest{}))
	if err != nil || len(list.Msg.Processes) != 1 || list.Msg.Processes[0].Pid != got.pid || list.Msg.Processes[0].GetTag() != tag {
		t.Fatalf("list = %v, %v", list, err)
	}
	live, err := b.client.Connect(context.Background(), connect.NewRequest(&processpb.ConnectRequest{
		Process: &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Tag{Tag: tag}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	again := &result{}
	for again.stdout.Len() < 20 && live.Receive() {
		if err := again.add(live.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
	}
	if again.pid != got.pid {
		t.Fatalf("attached to %d, wanted %d", again.pid, got.pid)
	}
	if err := b.kill(got.pid); err != nil {
		t.Fatal(err)
	}
	list, err = b.client.List(context.Background(), connect.NewRequest(&processpb.ListRequest{}))
	if err != nil || len(list.Msg.Processes) != 0 {
		t.Fatalf("after the kill: %v, %v", list, err)
	}
	if err := b.kill(got.pid); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatalf("second kill: %v", err)
	}
}

// A late Connect still learns how the process ended.
func TestConnectAfterTheEnd(t *testing.T) {
	b := newBench(t)
	pid := b.run(shell("exit 3")).pid
	late, err := b.client.Connect(context.Background(), connect.NewRequest(&processpb.ConnectRequest{Process: byPID(pid)}))
	if err != nil {
		t.Fatal(err)
	}
	got := &result{}
	for late.Receive() {
		if err := got.add(late.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
	}
	if got.pid != pid || got.end.GetExitCode() != 3 {
		t.Fatalf("got %v", got)
	}
}

// The deadline kills the tree and ends the stream with deadline_exceeded.
func TestDeadlineKillsTheTree(t *testing.T) {
	b := newBench(t)
	got, in := b.begin(context.Background(), shell("setsid sleep 60 & sleep 61 & echo $!; wait"), "Connect-Timeout-Ms", "400")
	start := time.Now()
	err := got.drain(in)
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Fatalf("err = %v", err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Fatalf("took %v", took)
	}
	if got.end != nil {
		t.Fatal("an end before the deadline error")
	}
	eventually(t, "the process is gone", func() bool { return !exists(int(got.pid)) })
	child, _ := strconv.Atoi(strings.TrimSpace(got.stdout.String()))
	eventually(t, "its child is gone", func() bool {
		return child > 0 && len(descendants(int(got.pid), map[int]struct{}{int(got.pid): {}})) == 0
	})
}

func TestKillTakesEveryDescendant(t *testing.T) {
	b := newBench(t)
	got, in := b.begin(context.Background(), shell("setsid sh -c 'sleep 71 & echo $!; wait' & sleep 72 & echo $!; wait"))
	var children []string
	for len(children) < 2 && in.Receive() {
		if err := got.add(in.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
		children = strings.Fields(got.stdout.String())
	}
	if err := b.kill(got.pid); err != nil {
		t.Fatal(err)
	}
	if err := got.drain(in); err != nil {
		t.Fatal(err)
	}
	if got.end.Status != "signal: killed" {
		t.Fatalf("end = %v", got.end)
	}
	for _, child := range children {
		pid, _ := strconv.Atoi(child)
		eventually(t, "child "+child+" is dead", func() bool {
			_, alive := readRelation(strconv.Itoa(pid))
			return !alive
		})
	}
}
