package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
)

// SNAP-16: an agent that stood still, as in a machine that its host stopped, and is told nothing. No deadline has passed for
// it, and no reader has been too slow.
func TestSNAP16AnAgentThatStoodStillCountsRunningTime(t *testing.T) {
	const deadline, still = 5 * time.Second, 7 * time.Second
	a := startAgent(t)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	limited := a.begin(ctx, "exec sleep 100")
	// Two that read nothing yet: each waits for the other, for which there is least patience.
	const total = 32 << 20
	first, err := a.client.Start(context.Background(), shell("head -c 33554432 /dev/zero"))
	if err != nil || !first.Receive() {
		t.Fatal(err, first.Err())
	}
	second, err := a.client.Connect(context.Background(), connect.NewRequest(&processpb.ConnectRequest{
		Process: &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: first.Msg().GetEvent().GetStart().GetPid()}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	time.Sleep(time.Second)

	a.signal(unix.SIGSTOP)
	time.Sleep(still)
	a.signal(unix.SIGCONT)

	if !slices.Contains(a.pids(), limited) {
		t.Error("the time it stood still was taken from a command's")
	}
	seconds := make(chan int)
	go func() {
		got := 0
		for second.Receive() {
			got += len(second.Msg().GetEvent().GetData().GetStdout())
		}
		seconds <- got
	}()
	got := 0
	for first.Receive() {
		got += len(first.Msg().GetEvent().GetData().GetStdout())
	}
	if got != total || first.Err() != nil {
		t.Errorf("the first reader got %d bytes of %d: %v", got, total, first.Err())
	}
	if got := <-seconds; got == 0 || second.Err() != nil {
		t.Errorf("the second reader got %d bytes: %v", got, second.Err())
	}
	for giveUp := time.Now().Add(6 * deadline); slices.Contains(a.pids(), limited); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(giveUp) {
			t.Fatal("the deadline does not come")
		}
	}
}

// begin starts a command that is followed no longer than to its start.
func (a *agent) begin(ctx context.Context, script string) uint32 {
	a.t.Helper()
	in, err := a.client.Start(ctx, shell(script))
	if err != nil || !in.Receive() {
		a.t.Fatal(err, in.Err())
	}
	return in.Msg().GetEvent().GetStart().GetPid()
}

func (a *agent) pids() []uint32 {
	a.t.Helper()
	list, err := a.client.List(context.Background(), connect.NewRequest(&processpb.ListRequest{}))
	if err != nil {
		a.t.Fatal(err)
	}
	pids := []uint32{}
	for _, process := range list.Msg.GetProcesses() {
		pids = append(pids, process.GetPid())
	}
	return pids
}

func (a *agent) signal(signal unix.Signal) {
	a.t.Helper()
	if err := unix.Kill(a.command.Process.Pid, signal); err != nil {
		a.t.Fatal(err)
	}
}
