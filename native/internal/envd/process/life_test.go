package process

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
)

// PROC-04: A stops reading, B attaches and gets live output, the process finishes, what nobody reads is dropped.
func TestPROC04StuckReaderIsDropped(t *testing.T) {
	b := newBench(t)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	total := 64 << 20
	// A reads its start event and nothing more.
	stuck, _ := b.begin(ctx, shell(fmt.Sprintf("sleep 0.3; head -c %d /dev/zero; echo last", total)))
	live, err := b.client.Connect(context.Background(), connect.NewRequest(&processpb.ConnectRequest{Process: byPID(stuck.pid)}))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	got := &result{}
	for live.Receive() {
		if err := got.add(live.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
	}
	if got.end == nil || got.end.ExitCode != 0 || got.stdout.Len() != total+5 {
		t.Fatalf("B got %d bytes and end %v (%v)", got.stdout.Len(), got.end, live.Err())
	}
	if took := time.Since(start); took < stallAfter || took > 4*stallAfter {
		t.Fatalf("the stuck client held everyone for %v, want about %v", took, stallAfter)
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
