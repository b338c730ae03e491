package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
	"aenv/native/gen/process/processconnect"
)

// serveAddress makes this test binary the agent itself, so that its memory can be measured and it can be killed.
const serveAddress = "ENVD_TEST_SERVE"

// peakBytes is what the agent may ever hold, whatever goes through it. (The figure for output.)
const peakBytes = 64 << 20

func TestMain(m *testing.M) {
	if address := os.Getenv(serveAddress); address != "" {
		if err := run(address, false); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// agent is a running agent, a process of its own.
type agent struct {
	t       *testing.T
	command *exec.Cmd
	url     string
	client  processconnect.ProcessClient
}

func startAgent(t *testing.T) *agent {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	command := exec.Command(os.Args[0])
	command.Env = []string{serveAddress + "=" + address}
	var said bytes.Buffer
	command.Stderr = &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			t.Logf("the agent said: %s", said.String())
		}
	})
	a := &agent{t: t, command: command, url: "http://" + address}
	a.client = processconnect.NewProcessClient(http.DefaultClient, a.url)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		res, err := http.Get(a.url + "/health")
		if err == nil {
			res.Body.Close()
			return a
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent does not serve: %v", err)
		}
	}
}

// peak is the most memory the agent has ever had.
func (a *agent) peak() int {
	a.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.command.Process.Pid))
	if err != nil {
		a.t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				a.t.Fatal(err)
			}
			return kib << 10
		}
	}
	a.t.Fatal("no VmHWM")
	return 0
}

func (a *agent) checkPeak(what string) {
	a.t.Helper()
	peak := a.peak()
	a.t.Logf("%s: at most %d MiB", what, peak>>20)
	if peak > peakBytes {
		a.t.Errorf("%s: the agent had %d MiB, more than %d", what, peak>>20, peakBytes>>20)
	}
}

func shell(script string) *connect.Request[processpb.StartRequest] {
	return connect.NewRequest(&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}})
}

// PROC-04, and the figure: 1 GiB of output to a reader that is slower than the program, another that reads nothing,
// and then nobody, stays small.
func TestPROC04OutputOfAGibibyteStaysSmall(t *testing.T) {
	a := startAgent(t)
	const total = 1 << 30
	in, err := a.client.Start(context.Background(), shell(fmt.Sprintf("head -c %d /dev/zero", total)))
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	var pid uint32
	for in.Receive() {
		event := in.Msg().GetEvent()
		if start := event.GetStart(); start != nil {
			pid = start.Pid
			// This one never reads.
			ctx, leave := context.WithCancel(context.Background())
			defer leave()
			if _, err := a.client.Connect(ctx, connect.NewRequest(&processpb.ConnectRequest{
				Process: &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: pid}},
			})); err != nil {
				t.Fatal(err)
			}
		}
		before := got >> 26
		got += len(event.GetData().GetStdout())
		if got>>26 != before {
			time.Sleep(50 * time.Millisecond)
		}
	}
	if in.Err() != nil || got != total {
		t.Fatalf("%d bytes, %v", got, in.Err())
	}
	a.checkPeak("1 GiB of output")
}

// FILE-07 and PROC-10: what goes in does not stay in the agent either.
func TestFILE07PROC10LargeInputStaysSmall(t *testing.T) {
	a := startAgent(t)
	const total = 512 << 20
	path := filepath.Join(t.TempDir(), "big")
	res, err := http.Post(a.url+"/files?path="+path, "application/octet-stream", io.LimitReader(zeros{}, total))
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v %v", res, err)
	}
	res.Body.Close()
	res, err = http.Get(a.url + "/files?path=" + path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if err != nil || got != total {
		t.Fatalf("%d bytes came back: %v", got, err)
	}
	a.checkPeak("a file of 512 MiB, in and out")

	in, err := a.client.Start(context.Background(), shell("wc -c"))
	if err != nil || !in.Receive() {
		t.Fatal(err, in.Err())
	}
	by := &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: in.Msg().GetEvent().GetStart().Pid}}
	input := a.client.StreamInput(context.Background())
	err = input.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Start{Start: &processpb.StreamInputRequest_StartEvent{Process: by}}})
	piece := &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: make([]byte, 1<<20)}}
	for i := 0; i < total>>20 && err == nil; i++ {
		err = input.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Data{Data: &processpb.StreamInputRequest_DataEvent{Input: piece}}})
	}
	if _, closeErr := input.CloseAndReceive(); err != nil || closeErr != nil {
		t.Fatal(err, closeErr)
	}
	if _, err := a.client.CloseStdin(context.Background(), connect.NewRequest(&processpb.CloseStdinRequest{Process: by})); err != nil {
		t.Fatal(err)
	}
	said := ""
	for in.Receive() {
		said += string(in.Msg().GetEvent().GetData().GetStdout())
	}
	if strings.TrimSpace(said) != strconv.Itoa(total) {
		t.Fatalf("the program counted %q (%v)", said, in.Err())
	}
	a.checkPeak("input of 512 MiB")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Many large messages at a time wait for each other.
func TestManyLargeMessagesAtATime(t *testing.T) {
	a := startAgent(t)
	in, err := a.client.Start(context.Background(), shell("wc -c"))
	if err != nil || !in.Receive() {
		t.Fatal(err, in.Err())
	}
	pid := in.Msg().GetEvent().GetStart().Pid
	const each = 16 << 20
	var all sync.WaitGroup
	for range 24 {
		all.Go(func() {
			_, err := a.client.SendInput(context.Background(), connect.NewRequest(&processpb.SendInputRequest{
				Process: &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: pid}},
				Input:   &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: make([]byte, each)}},
			}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if peak := a.peak(); peak > 6*(64<<20) {
		t.Errorf("the agent had %d MiB", peak>>20)
	} else {
		t.Logf("24 messages of 16 MiB: at most %d MiB", peak>>20)
	}
}

// PROC-20: an agent that is killed in the middle of a command never makes it look like a success.
func TestPROC20AKilledAgentIsNoSuccess(t *testing.T) {
	for range 20 {
		a := startAgent(t)
		in, err := a.client.Start(context.Background(), shell("echo begun; exec sleep 5"))
		if err != nil {
			t.Fatal(err)
		}
		for in.Receive() && in.Msg().GetEvent().GetData() == nil {
		}
		if err := unix.Kill(a.command.Process.Pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for in.Receive() {
			if end := in.Msg().GetEvent().GetEnd(); end != nil {
				t.Fatalf("the command ended: %v", end)
			}
		}
		if in.Err() == nil || errors.Is(in.Err(), context.Canceled) {
			t.Fatalf("the stream ended with %v", in.Err())
		}
	}
}
