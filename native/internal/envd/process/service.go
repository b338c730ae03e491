// Package process runs programs for clients: the process.Process service.
//
// A process's life does not depend on the request that started it. A client may leave and another one attach; only the
// program's own exit, a signal or the deadline of its Start ends it. It runs in a session of its own, which is also what
// is killed when it has to go.
package process

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/logbook"
	"aenv/native/internal/envd/reaper"
	"aenv/native/internal/envd/runclock"
	"aenv/native/internal/envd/stream"
	"aenv/native/internal/envd/users"
)

// killWait is how long a killed process is waited for: SendSignal answers when it is gone, so that a List right after does not show it.
const killWait = 2 * time.Second

// offsetHeader says in a Connect's answer where in all output since the process's start the stream begins; in its request,
// where it is to begin at the earliest. It is ours: clients of E2B do not know it and get all that is kept.
const offsetHeader = "Aenv-Output-Offset"

// Service implements process.Process.
type Service struct {
	// Log is told what processes do; nil: nobody wants to know. Set before the first Start.
	Log *logbook.Book

	identity *identity.Store
	reaper   *reaper.Reaper
	clock    *runclock.Clock
	patience patience
	table    table
	// hostKills is what the host has said about processes it killed.
	hostKills hostKills
}

var _ processconnect.ProcessHandler = (*Service)(nil)

// NewService returns a service without processes. It starts them through r; clock keeps their deadlines.
func NewService(who *identity.Store, r *reaper.Reaper, clock *runclock.Clock) *Service {
	return &Service{identity: who, reaper: r, clock: clock, patience: patience{others: 5 * time.Second, alone: 10 * time.Minute}}
}

// List returns the live processes.
func (s *Service) List(context.Context, *connect.Request[processpb.ListRequest]) (*connect.Response[processpb.ListResponse], error) {
	return connect.NewResponse(&processpb.ListResponse{Processes: s.table.list()}), nil
}

// Start runs a program and streams its life. The stream's timeout is the program's deadline.
func (s *Service) Start(ctx context.Context, req *connect.Request[processpb.StartRequest], out *connect.ServerStream[processpb.StartResponse]) error {
	user, err := s.requestUser(req.Header())
	if err != nil {
		return err
	}
	plan, err := newPlan(req.Msg, user, s.identity.Current())
	if err != nil {
		return err
	}
	book, retire, leave := s.Log, s.retire, func(*process) {}
	if isRehearsal(ctx) {
		book, retire, leave = &logbook.Book{}, s.table.forget, s.forgetRehearsal
	}
	proc, err := s.launch(plan, book)
	if err != nil {
		return err
	}
	defer leave(proc)
	sub, _ := proc.hub.subscribe(stream.Abort(ctx), 0)
	defer proc.hub.unsubscribe(sub)
	s.follow(proc, stream.Timeout(ctx), retire)

	send := func(event *processpb.ProcessEvent) error { return out.Send(&processpb.StartResponse{Event: event}) }
	if err := send(startEvent(proc.pid)); err != nil {
		return err
	}
	return pump(ctx, sub, stream.KeepAlive(req.Header()), proc.expired, send)
}

// follow passes on the output of a new process, keeps its deadline and hands it to retire at its end.
func (s *Service) follow(proc *process, timeout time.Duration, retire func(*process)) {
	var deadline *runclock.Timer
	if timeout > 0 {
		deadline = s.clock.AfterFunc(timeout, func() {
			close(proc.expired)
			s.kill(proc)
		})
	}
	go func() {
		proc.follow(&s.hostKills, s.reaper.Look, func() {
			if deadline != nil {
				deadline.Stop()
			}
		})
		retire(proc)
	}()
}

// retire keeps an ended process for a while.
func (s *Service) retire(proc *process) { s.table.retire(proc, s.clock) }

// forgetRehearsal returns when nothing is left of it, whatever became of its stream: a machine that stands still afterwards has none half
// ended.
func (s *Service) forgetRehearsal(proc *process) {
	s.end(context.Background(), proc)
	s.table.forget(proc)
}

// end is kill, and returns when the process is gone, or will not go.
func (s *Service) end(ctx context.Context, proc *process) bool {
	alive := s.kill(proc)
	if alive {
		proc.awaitExit(ctx, killWait)
	}
	return alive
}

// kill ends a process and its whole tree, on somebody's behalf; false: it had been collected before.
func (s *Service) kill(proc *process) bool {
	return s.reaper.Hold(proc.pid, func() {
		proc.killed.Store(true)
		killTree(proc.pid)
	})
}

// Connect attaches to a process: what is kept of its output, what it says from now on, and its end. A timeout ends the
// stream, not the process.
func (s *Service) Connect(ctx context.Context, req *connect.Request[processpb.ConnectRequest], out *connect.ServerStream[processpb.ConnectResponse]) error {
	if _, err := s.requestUser(req.Header()); err != nil {
		return err
	}
	proc, err := s.table.find(req.Msg.GetProcess())
	if err != nil {
		return err
	}
	sub, begins := proc.hub.subscribe(stream.Abort(ctx), outputOffset(req.Header()))
	defer proc.hub.unsubscribe(sub)
	out.ResponseHeader().Set(offsetHeader, strconv.FormatInt(begins, 10))
	expired := make(chan struct{})
	if timeout := stream.Timeout(ctx); timeout > 0 {
		timer := s.clock.AfterFunc(timeout, func() { close(expired) })
		defer timer.Stop()
	}
	send := func(event *processpb.ProcessEvent) error { return out.Send(&processpb.ConnectResponse{Event: event}) }
	if err := send(startEvent(proc.pid)); err != nil {
		return err
	}
	return pump(ctx, sub, stream.KeepAlive(req.Header()), expired, send)
}

// outputOffset is from where on a client that was attached before wants the output; a wrong one is none.
func outputOffset(header http.Header) int64 {
	offset, err := strconv.ParseInt(header.Get(offsetHeader), 10, 64)
	if err != nil {
		return 0
	}
	return offset
}

// SendSignal signals a process. SIGKILL takes its whole tree with it and is answered when the process is gone.
func (s *Service) SendSignal(ctx context.Context, req *connect.Request[processpb.SendSignalRequest]) (*connect.Response[processpb.SendSignalResponse], error) {
	proc, err := s.table.findAlive(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	signal := unix.Signal(req.Msg.GetSignal())
	if signal <= 0 || signal > 64 {
		return nil, invalid("signal %d does not exist", signal)
	}
	var alive bool
	var killErr error
	if signal == unix.SIGKILL {
		alive = s.end(ctx, proc)
	} else {
		alive = s.reaper.Hold(proc.pid, func() { killErr = unix.Kill(proc.pid, signal) })
	}
	switch {
	case !alive:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d not found: it has ended", proc.pid))
	case killErr != nil:
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("signal process %d: %w", proc.pid, killErr))
	}
	return connect.NewResponse(&processpb.SendSignalResponse{}), nil
}

// Update resizes the terminal of a process.
func (s *Service) Update(_ context.Context, req *connect.Request[processpb.UpdateRequest]) (*connect.Response[processpb.UpdateResponse], error) {
	proc, err := s.table.findAlive(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if req.Msg.GetPty() == nil {
		return connect.NewResponse(&processpb.UpdateResponse{}), nil
	}
	if proc.terminal == nil {
		return nil, invalid("process %d has no terminal to resize", proc.pid)
	}
	if err := resizeTerminal(proc.terminal, windowSize(req.Msg.GetPty())); err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("resize terminal of process %d: %w", proc.pid, err))
	}
	return connect.NewResponse(&processpb.UpdateResponse{}), nil
}

func (s *Service) requestUser(header http.Header) (users.User, error) {
	user, err := s.identity.RequestUser(header)
	if err != nil {
		return user, connect.NewError(connect.CodeUnauthenticated, err)
	}
	return user, nil
}
