package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
)

func program(cmd string, args ...string) *processpb.StartRequest {
	return &processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: cmd, Args: args}}
}

func (b *bench) closeStdin(pid uint32) error {
	_, err := b.client.CloseStdin(context.Background(), connect.NewRequest(&processpb.CloseStdinRequest{Process: byPID(pid)}))
	return err
}

func (b *bench) stream(pid uint32, pieces int, piece []byte) error {
	in := b.client.StreamInput(context.Background())
	err := in.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Start{
		Start: &processpb.StreamInputRequest_StartEvent{Process: byPID(pid)},
	}})
	for i := 0; i < pieces && err == nil; i++ {
		err = in.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Data{
			Data: &processpb.StreamInputRequest_DataEvent{Input: &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: piece}}},
		}})
	}
	_, closeErr := in.CloseAndReceive()
	return closeErr
}

// PROC-10: 64 MiB arrive whole; a program that stops reading does not hang the writer; a slow one slows it down.
func TestPROC10LargeInput(t *testing.T) {
	b := newBench(t)
	piece := make([]byte, 1<<20)
	for i := range piece {
		piece[i] = byte(i * 7)
	}
	hash := sha256.New()
	for range 64 {
		hash.Write(piece)
	}
	got, in := b.begin(context.Background(), program("sha256sum"))
	if err := b.stream(got.pid, 64, piece); err != nil {
		t.Fatal(err)
	}
	if err := b.closeStdin(got.pid); err != nil {
		t.Fatal(err)
	}
	if err := got.drain(in); err != nil {
		t.Fatal(err)
	}
	if want := hex.EncodeToString(hash.Sum(nil)); !strings.HasPrefix(got.stdout.String(), want) {
		t.Fatalf("hash %q, want %s", got.stdout.String(), want)
	}

	got, in = b.begin(context.Background(), program("head", "-c", "1"))
	start := time.Now()
	if err := b.stream(got.pid, 64, piece); err == nil {
		t.Fatal("the writer was not told that nobody reads")
	}
	if err := got.drain(in); err != nil || got.end.ExitCode != 0 || time.Since(start) > 3*time.Second {
		t.Fatalf("early exit: %v %v after %v", err, got.end, time.Since(start))
	}

	got, in = b.begin(context.Background(), program("sh", "-c", "sleep 0.7; wc -c"))
	start = time.Now()
	if err := b.send(got.pid, string(piece)); err != nil {
		t.Fatal(err)
	}
	if time.Since(start) < 500*time.Millisecond {
		t.Fatal("1 MiB was taken before the program read")
	}
	if err := b.closeStdin(got.pid); err != nil {
		t.Fatal(err)
	}
	if err := got.drain(in); err != nil || strings.TrimSpace(got.stdout.String()) != "1048576" {
		t.Fatalf("slow reader got %q, %v", got.stdout.String(), err)
	}
}

func TestStdinAbsentOpenAndOff(t *testing.T) {
	b := newBench(t)
	off := shell("read x; echo $?")
	if got := b.run(off); got.stdout.String() != "1\n" {
		t.Fatalf("stdin:false must read as empty, got %q", got.stdout.String())
	}
	got, in := b.begin(context.Background(), program("cat"))
	for _, text := range []string{"one ", "", "two $&\n"} {
		if err := b.send(got.pid, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.closeStdin(got.pid); err != nil {
		t.Fatal(err)
	}
	// Closing again is no error, unless the end of its input has ended it already.
	if err := b.closeStdin(got.pid); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatal(err)
	}
	if err := got.drain(in); err != nil || got.stdout.String() != "one two $&\n" {
		t.Fatalf("%q, %v", got.stdout.String(), err)
	}
	if err := b.send(got.pid, "x"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatalf("input to an ended process: %v", err)
	}
}

func (b *bench) keys(pid uint32, keys string) error {
	_, err := b.client.SendInput(context.Background(), connect.NewRequest(&processpb.SendInputRequest{
		Process: byPID(pid),
		Input:   &processpb.ProcessInput{Input: &processpb.ProcessInput_Pty{Pty: []byte(keys)}},
	}))
	return err
}

func (b *bench) resize(pid, cols, rows uint32) error {
	_, err := b.client.Update(context.Background(), connect.NewRequest(&processpb.UpdateRequest{
		Process: byPID(pid), Pty: &processpb.PTY{Size: &processpb.PTY_Size{Cols: cols, Rows: rows}},
	}))
	return err
}

// PROC-17: order, size, locale, end.
func TestPROC17Terminal(t *testing.T) {
	b := newBench(t)
	file := t.TempDir() + "/keys"
	msg := program("sh", "-c", `tty; stty size; trap 'stty size; exit 5' WINCH; echo $LANG $TERM; stty -echo; cat > `+file+`; printf '│ü\n'; while :; do sleep 0.05; done`)
	msg.Pty = &processpb.PTY{Size: &processpb.PTY_Size{Cols: 100, Rows: 30}}
	got, in := b.begin(context.Background(), msg)
	for !strings.Contains(got.tt.String(), "xterm-256color") && in.Receive() {
		if err := got.add(in.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.Repeat("abcdefghi\n", 50)
	for _, key := range want {
		if err := b.keys(got.pid, string(key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.closeStdin(got.pid); connect.CodeOf(err) != connect.CodeUnknown {
		t.Fatalf("CloseStdin on a terminal: %v", err)
	}
	if err := b.keys(got.pid, "\x04"); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(got.tt.String(), "│ü") && in.Receive() {
		if err := got.add(in.Msg().GetEvent()); err != nil {
			t.Fatal(err)
		}
	}
	if typed, _ := os.ReadFile(file); string(typed) != want {
		t.Fatalf("the keys arrived as %q", typed)
	}
	if err := b.resize(got.pid, 200, 50); err != nil {
		t.Fatal(err)
	}
	if err := got.drain(in); err != nil {
		t.Fatal(err)
	}
	text := got.tt.String()
	if !strings.HasPrefix(text, "/dev/pts/") || !strings.Contains(text, "30 100") || !strings.Contains(text, "C.UTF-8 xterm-256color") || !strings.Contains(text, "50 200") {
		t.Fatalf("terminal said %q", text)
	}
	if got.end.ExitCode != 5 {
		t.Fatalf("end = %v", got.end)
	}
	if err := b.resize(got.pid, 80, 24); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatalf("resize after the end: %v", err)
	}
	if err := b.keys(got.pid, "x"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatalf("keys after the end: %v", err)
	}
}
