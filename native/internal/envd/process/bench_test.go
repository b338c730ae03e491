package process

import (
	"bytes"
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/reaper"
	"aenv/native/internal/envd/runclock"
	"aenv/native/internal/envd/stream"
	"aenv/native/internal/envd/users"
)

// children is the one reaper of this test binary.
var children *reaper.Reaper

func TestMain(m *testing.M) {
	children = reaper.New()
	code := m.Run()
	children.Close()
	os.Exit(code)
}

// bench is a served Service and a client of it.
type bench struct {
	t       *testing.T
	who     *identity.Store
	service *Service
	server  *httptest.Server
	client  processconnect.ProcessClient
}

func newBench(t *testing.T) *bench {
	t.Helper()
	who := identity.NewStore(users.Database{})
	who.Accept("", "", identity.Identity{DefaultUser: "root", DefaultWorkdir: "/tmp"})
	service := NewService(who, children, &runclock.Clock{})
	_, handler := processconnect.NewProcessHandler(service)
	server := httptest.NewServer(stream.Wrap(handler))
	t.Cleanup(server.Close)
	return &bench{t, who, service, server, processconnect.NewProcessClient(server.Client(), server.URL,
		connect.WithProtoJSON(), connect.WithAcceptCompression("gzip", nil, nil))}
}

// result is what a client learns of a process.
type result struct {
	pid                uint32
	stdout, stderr, tt bytes.Buffer
	end                *processpb.ProcessEvent_EndEvent
	keepAlives         int
}

func shell(script string) *processpb.StartRequest {
	no := false
	return &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}},
		Stdin:   &no,
	}
}

func (r *result) add(event *processpb.ProcessEvent) error {
	if r.end != nil {
		return errors.New("an event after the end")
	}
	switch e := event.Event.(type) {
	case *processpb.ProcessEvent_Start:
		r.pid = e.Start.Pid
	case *processpb.ProcessEvent_Data:
		if r.pid == 0 {
			return errors.New("data before start")
		}
		r.stdout.Write(e.Data.GetStdout())
		r.stderr.Write(e.Data.GetStderr())
		r.tt.Write(e.Data.GetPty())
	case *processpb.ProcessEvent_End:
		r.end = e.End
	case *processpb.ProcessEvent_Keepalive:
		r.keepAlives++
	}
	return nil
}

// drain reads a Start stream to its end.
func (r *result) drain(in *connect.ServerStreamForClient[processpb.StartResponse]) error {
	for in.Receive() {
		if err := r.add(in.Msg().GetEvent()); err != nil {
			return err
		}
	}
	return in.Err()
}

func (b *bench) start(ctx context.Context, msg *processpb.StartRequest, headers ...string) *connect.ServerStreamForClient[processpb.StartResponse] {
	b.t.Helper()
	req := connect.NewRequest(msg)
	for i := 0; i < len(headers); i += 2 {
		req.Header().Set(headers[i], headers[i+1])
	}
	in, err := b.client.Start(ctx, req)
	if err != nil {
		b.t.Fatal(err)
	}
	return in
}

// begin starts a process and reads its start event.
func (b *bench) begin(ctx context.Context, msg *processpb.StartRequest, headers ...string) (*result, *connect.ServerStreamForClient[processpb.StartResponse]) {
	b.t.Helper()
	in := b.start(ctx, msg, headers...)
	got := &result{}
	if !in.Receive() {
		b.t.Fatalf("no start event: %v", in.Err())
	}
	if err := got.add(in.Msg().GetEvent()); err != nil || got.pid == 0 {
		b.t.Fatalf("the first event is not a start: %v %v", in.Msg(), err)
	}
	return got, in
}

func (b *bench) run(msg *processpb.StartRequest, headers ...string) *result {
	b.t.Helper()
	got := &result{}
	if err := got.drain(b.start(context.Background(), msg, headers...)); err != nil {
		b.t.Fatal(err)
	}
	return got
}

func (b *bench) failure(msg *processpb.StartRequest, headers ...string) error {
	return (&result{}).drain(b.start(context.Background(), msg, headers...))
}

func byPID(pid uint32) *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: pid}}
}

func (b *bench) send(pid uint32, data string) error {
	_, err := b.client.SendInput(context.Background(), connect.NewRequest(&processpb.SendInputRequest{
		Process: byPID(pid),
		Input:   &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: []byte(data)}},
	}))
	return err
}

func (b *bench) kill(pid uint32) error {
	_, err := b.client.SendSignal(context.Background(), connect.NewRequest(&processpb.SendSignalRequest{
		Process: byPID(pid), Signal: processpb.Signal_SIGNAL_SIGKILL,
	}))
	return err
}

// eventually waits for a condition of the machine.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func exists(pid int) bool {
	_, err := os.Stat("/proc/" + strconv.Itoa(pid))
	return err == nil
}
