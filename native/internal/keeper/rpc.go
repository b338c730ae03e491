package keeper

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	keeperv1 "aenv/native/gen/aenv/keeper/v1"
	"aenv/native/gen/aenv/keeper/v1/keeperv1connect"
	"aenv/native/internal/keeper/command"
	"aenv/native/internal/keeper/proc"
	"aenv/native/internal/keeper/service"

	"connectrpc.com/connect"
)

const (
	maxRequestBytes = 32 << 20
	pingEvery       = 15 * time.Second
)

// handler translates between the wire and the keeper's parts.
type handler struct {
	keeper *Keeper
	// streams ends when the Exits streams have to.
	streams context.Context
}

func newHandler(k *Keeper, streams context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(keeperv1connect.NewKeeperHandler(&handler{k, streams},
		connect.WithReadMaxBytes(maxRequestBytes),
		// Both ends are on one machine.
		connect.WithCompression("gzip", nil, nil),
	))
	return mux
}

// Run ignores the caller's going away: a command half done is worse than one done unseen.
func (h *handler) Run(_ context.Context, req *connect.Request[keeperv1.RunRequest]) (*connect.Response[keeperv1.RunResponse], error) {
	m := req.Msg
	result, err := h.keeper.commands.Run(command.Spec{
		Argv:          m.Argv,
		Env:           m.Env,
		Dir:           m.Cwd,
		Stdin:         m.Stdin,
		Timeout:       time.Duration(m.TimeoutMs) * time.Millisecond,
		LogFile:       m.LogFile,
		LogLimitBytes: int64(m.LogLimitBytes),
		DiscardOutput: m.DiscardOutput,
		NetnsPath:     m.NetnsPath,
	})
	if errors.Is(err, command.ErrInvalid) {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return connect.NewResponse(&keeperv1.RunResponse{
		ExitCode:  int32(result.Exit.Code),
		Signal:    int32(result.Exit.Signal),
		Stdout:    result.Stdout,
		Stderr:    result.Stderr,
		Truncated: result.Truncated,
		TimedOut:  result.TimedOut,
		Pid:       uint32(result.Pid),
	}), nil
}

func (h *handler) Track(_ context.Context, req *connect.Request[keeperv1.TrackRequest]) (*connect.Response[keeperv1.TrackResponse], error) {
	if req.Msg.Pid <= 1 || req.Msg.Pid > 1<<22 {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("pid: want 2 to 4194304"))
	}
	alive := h.keeper.table.Track(int(req.Msg.Pid), req.Msg.StartTicks)
	return connect.NewResponse(&keeperv1.TrackResponse{Alive: alive}), nil
}

func (h *handler) Exits(ctx context.Context, req *connect.Request[keeperv1.ExitsRequest], stream *connect.ServerStream[keeperv1.ExitsResponse]) error {
	ring := h.keeper.table.Exits()
	told := min(req.Msg.AfterSeq, ring.Last())
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	ping := true
	for {
		if ping {
			if err := stream.Send(&keeperv1.ExitsResponse{Seq: told, Epoch: h.keeper.epoch}); err != nil {
				return err
			}
		}
		events, complete, more := ring.After(told)
		if !complete {
			return connect.NewError(connect.CodeAborted, errors.New("exits after after_seq are forgotten; track again what matters"))
		}
		for _, event := range events {
			if err := stream.Send(exitMessage(event, h.keeper.epoch)); err != nil {
				return err
			}
			told = event.Seq
		}
		ping = false
		select {
		case <-more:
		case <-ticker.C:
			ping = true
		case <-ctx.Done():
			return ctx.Err()
		case <-h.streams.Done():
			return connect.NewError(connect.CodeUnavailable, errors.New("the keeper is stopping"))
		}
	}
}

func exitMessage(event proc.Event, epoch string) *keeperv1.ExitsResponse {
	return &keeperv1.ExitsResponse{
		Seq:        event.Seq,
		Pid:        uint32(event.Pid),
		StartTicks: event.StartTicks,
		ExitCode:   int32(event.Exit.Code),
		Signal:     int32(event.Exit.Signal),
		AtUnixMs:   event.Exit.At.UnixMilli(),
		Epoch:      epoch,
	}
}

func (h *handler) Status(context.Context, *connect.Request[keeperv1.StatusRequest]) (*connect.Response[keeperv1.StatusResponse], error) {
	status := &keeperv1.StatusResponse{
		Pid:     uint32(os.Getpid()),
		Epoch:   h.keeper.epoch,
		Version: h.keeper.config.Version,
	}
	for _, s := range h.keeper.services.Status() {
		message := &keeperv1.Service{
			Name:     s.Name,
			Pid:      uint32(s.Pid),
			State:    s.State,
			Restarts: uint32(s.Restarts),
			LogFile:  s.LogFile,
		}
		if !s.StartedAt.IsZero() {
			message.StartedAtUnixMs = s.StartedAt.UnixMilli()
		}
		status.Services = append(status.Services, message)
	}
	return connect.NewResponse(status), nil
}

func (h *handler) RestartService(_ context.Context, req *connect.Request[keeperv1.RestartServiceRequest]) (*connect.Response[keeperv1.RestartServiceResponse], error) {
	pid, err := h.keeper.services.Restart(req.Msg.Name)
	if errors.Is(err, service.ErrUnknown) {
		return nil, connect.NewError(connect.CodeNotFound, err)
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return connect.NewResponse(&keeperv1.RestartServiceResponse{Pid: uint32(pid)}), nil
}
