package process

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
)

// SendInput writes to the standard input or terminal of a process; it is answered when the process's pipe took it all.
func (s *Service) SendInput(ctx context.Context, req *connect.Request[processpb.SendInputRequest]) (*connect.Response[processpb.SendInputResponse], error) {
	proc, err := s.table.findAlive(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if err := proc.feed(ctx, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&processpb.SendInputResponse{}), nil
}

// StreamInput is SendInput for many pieces: the first message names the process, the others carry data.
func (s *Service) StreamInput(ctx context.Context, in *connect.ClientStream[processpb.StreamInputRequest]) (*connect.Response[processpb.StreamInputResponse], error) {
	var proc *process
	for in.Receive() {
		switch event := in.Msg().GetEvent().(type) {
		case *processpb.StreamInputRequest_Start:
			found, err := s.table.findAlive(event.Start.GetProcess())
			if err != nil {
				return nil, err
			}
			proc = found
		case *processpb.StreamInputRequest_Data:
			if proc == nil {
				return nil, invalid("the first message of an input stream names the process")
			}
			if err := proc.feed(ctx, event.Data.GetInput()); err != nil {
				return nil, err
			}
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, context.Canceled) {
		return nil, err
	}
	return connect.NewResponse(&processpb.StreamInputResponse{}), nil
}

// CloseStdin ends the standard input of a process. A terminal has no end to close: send it the byte 0x04.
func (s *Service) CloseStdin(ctx context.Context, req *connect.Request[processpb.CloseStdinRequest]) (*connect.Response[processpb.CloseStdinResponse], error) {
	proc, err := s.table.findAlive(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	switch {
	case proc.terminal != nil:
		return nil, connect.NewError(connect.CodeUnknown, errors.New("a terminal's input cannot be closed; send the byte 0x04"))
	case proc.in == nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d was started without standard input", proc.pid))
	}
	if err := proc.in.close(ctx); err != nil {
		return nil, err
	}
	return connect.NewResponse(&processpb.CloseStdinResponse{}), nil
}

// feed writes one piece of input. The error has a Connect code.
func (p *process) feed(ctx context.Context, piece *processpb.ProcessInput) error {
	var data []byte
	switch input := piece.GetInput().(type) {
	case *processpb.ProcessInput_Stdin:
		if p.terminal != nil {
			return invalid("process %d has a terminal: send pty input, not stdin", p.pid)
		}
		data = input.Stdin
	case *processpb.ProcessInput_Pty:
		if p.terminal == nil {
			return invalid("process %d has no terminal: send stdin input, not pty", p.pid)
		}
		data = input.Pty
	default:
		return invalid("the input carries neither stdin nor pty data")
	}
	if p.in == nil {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d was started without standard input", p.pid))
	}
	err := p.in.write(ctx, data)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errInputClosed) && !p.alive():
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d not found: it has ended", p.pid))
	case errors.Is(err, errInputClosed):
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d does not read its input any more", p.pid))
	default:
		return err
	}
}
