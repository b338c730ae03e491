package process

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
)

// hoard is a line without an end for a program that keeps what it reads until the line is complete.
var hoard = strings.Repeat("x", 24<<20)

// RES-01
func TestRES01FreeMemoryKillsTheLargestAndSaysSo(t *testing.T) {
	b := newBench(t)
	bystander, bystanderIn := b.begin(context.Background(), program("cat"))
	cases := []struct {
		msg           *processpb.StartRequest
		status, error string
		code          int32
	}{
		{program("tail", "-n", "1"), "signal: killed", OutOfMemory, -1},
		{program("/bin/sh", "-c", "tail -n 1"), "exit status 137", OutOfMemory, 137},
		{program("/bin/sh", "-c", "tail -n 1; exit 3"), "exit status 3", "exit status 3", 3},
		{program("/bin/sh", "-c", "setsid tail -n 1; true"), "exit status 0", "", 0},
	}
	for _, c := range cases {
		got, in := b.begin(context.Background(), c.msg)
		if err := b.send(got.pid, hoard); err != nil {
			t.Fatal(err)
		}
		var victim Victim
		eventually(t, "a process worth killing", func() (found bool) {
			victim, found = b.service.FreeMemory(context.Background())
			return found
		})
		if err := got.drain(in); err != nil {
			t.Fatal(err)
		}
		if victim.Name != "tail" || victim.Bytes < victimMinBytes {
			t.Errorf("%v: the victim is %+v", c.msg, victim)
		}
		if !strings.Contains(got.stderr.String(), OutOfMemory+": tail (pid ") {
			t.Errorf("%v: stderr is %q", c.msg, got.stderr.String())
		}
		if got.end.Status != c.status || got.end.GetError() != c.error || got.end.ExitCode != c.code {
			t.Errorf("%v: end = %v", c.msg, got.end)
		}
	}
	if err := b.kill(bystander.pid); err != nil {
		t.Fatal(err)
	}
	if err := bystander.drain(bystanderIn); err != nil || bystander.end.GetError() != "signal: killed" || bystander.stderr.Len() > 0 {
		t.Fatalf("%v %v %q", err, bystander.end, bystander.stderr.String())
	}
	if victim, found := b.service.FreeMemory(context.Background()); found {
		t.Fatalf("killed %+v where nothing was worth it", victim)
	}
}

// RES-04
func TestRES04FreeMemoryKillsASwarmAsAWhole(t *testing.T) {
	b := newBench(t)
	// Thirty equal processes, none of which would be worth it.
	got, in := b.begin(context.Background(), shell("for i in $(seq 30); do sleep 600 & done; echo ready; wait"))
	for got.stdout.Len() == 0 && in.Receive() {
		if err := got.add(in.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
	}
	// A process just forked holds little yet.
	var victim Victim
	eventually(t, "a swarm worth killing", func() (found bool) {
		victim, found = b.service.FreeMemory(context.Background())
		return found
	})
	if err := got.drain(in); err != nil || victim.Others < 29 {
		t.Fatalf("%v %+v", err, victim)
	}
	if got.end.GetError() != OutOfMemory || !strings.Contains(got.stderr.String(), " others\n") {
		t.Fatalf("%v, stderr %q", got.end, got.stderr.String())
	}
	eventually(t, "all of them are gone", func() bool { return len(descendants(int(got.pid), nil)) == 0 })
}

// RES-02: lack of memory, a kill and a deadline end a command in three different ways.
func TestRES02HostKilledIsSaidToTheCommandItHit(t *testing.T) {
	b := newBench(t)
	got, in := b.begin(context.Background(), program("sleep", "60"))
	if err := unix.Kill(int(got.pid), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.service.HostKilled(1)
	if err := got.drain(in); err != nil {
		t.Fatal(err)
	}
	if got.end.Status != "signal: killed" || got.end.GetError() != OutOfMemory || got.stderr.String() != OutOfMemory+"\n" {
		t.Fatalf("%v, stderr %q", got.end, got.stderr.String())
	}
	if end := b.run(shell("kill -9 $$")).end; end.GetError() != "signal: killed" {
		t.Fatalf("one kill was said of two commands: %v", end)
	}
	b.service.HostKilled(1)
	if again := b.run(shell("exit 137")); again.end.ExitCode != 137 || again.end.GetError() != OutOfMemory {
		t.Fatalf("%v", again.end)
	}
}
