package process

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
)

func TestExitStatusTexts(t *testing.T) {
	b := newBench(t)
	cases := []struct {
		script, status, problem string
		code                    int32
		exited                  bool
	}{
		{"exit 0", "exit status 0", "", 0, true},
		{"exit 7", "exit status 7", "exit status 7", 7, true},
		{"kill -9 $$", "signal: killed", "signal: killed", -1, false},
		{"kill -15 $$", "signal: terminated", "signal: terminated", -1, false},
	}
	for _, c := range cases {
		end := b.run(shell(c.script)).end
		if end.Status != c.status || end.GetError() != c.problem || end.ExitCode != c.code || end.Exited != c.exited {
			t.Errorf("%s: end = %v", c.script, end)
		}
		if (end.Error == nil) != (c.problem == "") {
			t.Errorf("%s: error is %v", c.script, end.Error)
		}
	}
}

// PROC-01: nothing of the tail is lost, and the end comes last (result.add refuses anything behind it).
func TestPROC01TailIsComplete(t *testing.T) {
	b := newBench(t)
	script := "head -c 200000 /dev/zero; head -c 50000 /dev/zero >&2; printf marker"
	failures := make(chan error, 100)
	slots := make(chan struct{}, 10)
	for range cap(failures) {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			got := &result{}
			err := got.drain(b.start(context.Background(), shell(script)))
			if err == nil && (got.stdout.Len() != 200006 || got.stderr.Len() != 50000 || !bytes.HasSuffix(got.stdout.Bytes(), []byte("marker"))) {
				err = fmt.Errorf("stdout %d, stderr %d", got.stdout.Len(), got.stderr.Len())
			}
			failures <- err
		}()
	}
	for range cap(failures) {
		if err := <-failures; err != nil {
			t.Fatal(err)
		}
	}
}

// PROC-02: a child left behind holds the pipes, silent or chatty; the call ends, and the child lives on.
func TestPROC02BackgroundChildDoesNotHoldTheCall(t *testing.T) {
	b := newBench(t)
	for _, child := range []string{"sleep 15", "while sleep 1; do echo tick; done", "while :; do echo tick; sleep 0.05; done"} {
		start := time.Now()
		got := b.run(shell("(" + child + ") & echo word $!"))
		if took := time.Since(start); took > time.Second {
			t.Errorf("%s: took %v", child, took)
		}
		fields := strings.Fields(strings.ReplaceAll(got.stdout.String(), "tick", ""))
		if len(fields) != 2 || fields[0] != "word" || got.end.ExitCode != 0 {
			t.Fatalf("%s: %q %v", child, got.stdout.String(), got.end)
		}
		pid, _ := strconv.Atoi(fields[1])
		time.Sleep(200 * time.Millisecond)
		if !exists(pid) {
			t.Errorf("%s: the background child is gone", child)
		}
		killTree(pid)
	}
}

// PROC-02, where the child left behind writes faster than anybody reads.
func TestPROC02AFloodLeftBehindDoesNotHoldTheCall(t *testing.T) {
	b := newBench(t)
	got, in := b.begin(context.Background(), shell("yes tick & echo $! >&2; sleep 0.1; exit 7"))
	start := time.Now()
	if err := got.drain(in); err != nil || got.end.GetExitCode() != 7 {
		t.Fatalf("%v, end %v", err, got.end)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("the end came %v after the start", took)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(got.stderr.String()))
	if err != nil || !exists(pid) {
		t.Fatalf("the child %q is gone (%v)", got.stderr.String(), err)
	}
	killTree(pid)
	if got.stdout.Len() == 0 {
		t.Error("the child was not heard")
	}
}

// PROC-07 and PROC-08: bytes are bytes, whatever they are and however they are cut.
func TestPROC07PROC08BytesAreExact(t *testing.T) {
	b := newBench(t)
	for script, want := range map[string]string{
		"printf hello":      "hello",
		":":                 "",
		"printf 0":          "0",
		`printf '\000'`:     "\x00",
		`printf '{}\002\n'`: "{}\x02\n",
		`printf '\342'; sleep 0.05; printf '\202'; sleep 0.05; printf '\254'`: "€",
	} {
		if got := b.run(shell(script)); got.stdout.String() != want {
			t.Errorf("%s: %q", script, got.stdout.String())
		}
	}
	got := b.run(shell("head -c 1048576 /dev/urandom > /tmp/envd-test-random; cat /tmp/envd-test-random"))
	want, err := os.ReadFile("/tmp/envd-test-random")
	os.Remove("/tmp/envd-test-random")
	if err != nil || !bytes.Equal(want, got.stdout.Bytes()) {
		t.Fatalf("1 MiB of noise differs (%v)", err)
	}
}

// PROC-11: more than a pipe holds on both streams.
func TestPROC11BothStreamsFull(t *testing.T) {
	b := newBench(t)
	start := time.Now()
	got := b.run(shell("head -c 1048576 /dev/zero >&2; head -c 1048576 /dev/zero; for i in 1 2 3 4; do head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; done"))
	if got.stdout.Len() != 1448576 || got.stderr.Len() != 1448576 || time.Since(start) > 2*time.Second {
		t.Fatalf("%d and %d bytes in %v", got.stdout.Len(), got.stderr.Len(), time.Since(start))
	}
}

func TestKeepAlive(t *testing.T) {
	b := newBench(t)
	got, in := b.begin(context.Background(), shell("sleep 1.3"), "Keepalive-Ping-Interval", "1")
	attached := make(chan *result, 1)
	go func() {
		req := connect.NewRequest(&processpb.ConnectRequest{Process: byPID(got.pid)})
		req.Header().Set("Keepalive-Ping-Interval", "1")
		again := &result{}
		if in, err := b.client.Connect(context.Background(), req); err != nil {
			t.Error(err)
		} else if err := again.drainAttached(in, never); err != nil {
			t.Error(err)
		}
		attached <- again
	}()
	if err := got.drain(in); err != nil || got.keepAlives != 1 {
		t.Errorf("%d keepalives to who started it, %v", got.keepAlives, err)
	}
	if again := <-attached; again.keepAlives != 1 {
		t.Errorf("%d keepalives to who attached", again.keepAlives)
	}
}

// PROC-13: thousands of commands, of all kinds, also of clients that go away, leave no descriptor, goroutine or memory behind.
func TestPROC13NoLeak(t *testing.T) {
	const commands = 3000
	b := newBench(t)
	b.run(shell(":"))
	before, goroutines := openFiles(t), runtime.NumGoroutine()
	for i := range commands {
		msg := shell("echo x")
		if i%3 == 0 {
			msg.Pty = &processpb.PTY{}
		}
		if i%5 == 0 {
			ctx, leave := context.WithCancel(context.Background())
			b.begin(ctx, msg)
			leave()
			continue
		}
		if got := b.run(msg); got.end.GetExitCode() != 0 {
			t.Fatalf("command %d: %v", i, got.end)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	b.server.Client().CloseIdleConnections()
	eventually(t, fmt.Sprintf("descriptors fall back to about %d", before), func() bool { return openFiles(t) <= before+4 })
	eventually(t, fmt.Sprintf("goroutines fall back to about %d", goroutines), func() bool { return runtime.NumGoroutine() <= goroutines+10 })
	if kept := b.service.table.kept.Load(); kept > commands*10 {
		t.Errorf("%d bytes are kept of %d lines", kept, commands)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
