package process

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	processpb "aenv/native/gen/process"
)

// process is one program that was started for a client, from its start until its end is forgotten.
type process struct {
	pid  int
	info *processpb.ProcessInfo
	hub  hub
	// in is nil when standard input is /dev/null.
	in *input
	// terminal is nil for a process on pipes.
	terminal *os.File
	outputs  []*output
	// exited is closed when the process has been collected; status is set before.
	exited chan struct{}
	status unix.WaitStatus
	// expired is closed when the deadline of its Start has passed; it is killed right after.
	expired chan struct{}
	// killed is set before a client, or its deadline, has it killed.
	killed     atomic.Bool
	casualties casualties
	// transcript logs what it does.
	transcript *transcript
}

func (p *process) alive() bool { return !isClosed(p.exited) }

// awaitExit waits until the process has been collected, but not for longer than wait.
func (p *process) awaitExit(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// collected is called by the reaper.
func (p *process) collected(status unix.WaitStatus) {
	p.status = status
	close(p.exited)
}

// follow passes the output on and, after the exit, publishes the end behind the last of it. onExit is called between. look is called
// when nobody can write any more: that is mostly because the process has ended.
func (p *process) follow(host *hostKills, look, onExit func()) {
	publish := func(from channel, data []byte) {
		p.hub.publish(from, data)
		p.transcript.output(from, data)
	}
	for _, out := range p.outputs {
		out.publish, out.atEnd = publish, look
		go out.run()
	}
	<-p.exited
	onExit()
	settle(p.outputs)
	outOfMemory := p.diedOfMemory(host)
	p.tellCasualties()
	end := endEvent(p.status, outOfMemory)
	p.transcript.end(end, outOfMemory)
	p.hub.finish(end)
	if p.in != nil && p.terminal == nil {
		_ = p.in.close(context.Background())
	}
}

// endEvent words a wait status the way E2B's clients expect it.
func endEvent(status unix.WaitStatus, outOfMemory bool) *processpb.ProcessEvent {
	end := &processpb.ProcessEvent_EndEvent{}
	if status.Signaled() {
		end.ExitCode = -1
		end.Status = "signal: " + status.Signal().String()
		if status.CoreDump() {
			end.Status += " (core dumped)"
		}
		end.Error = &end.Status
	} else {
		end.ExitCode = int32(status.ExitStatus())
		end.Exited = true
		end.Status = fmt.Sprintf("exit status %d", status.ExitStatus())
		if status.ExitStatus() != 0 {
			end.Error = &end.Status
		}
	}
	if outOfMemory {
		end.Error = proto.String(OutOfMemory)
	}
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_End{End: end}}
}

func startEvent(pid int) *processpb.ProcessEvent {
	start := &processpb.ProcessEvent_StartEvent{Pid: uint32(pid)}
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Start{Start: start}}
}

func keepAliveEvent() *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Keepalive{Keepalive: &processpb.ProcessEvent_KeepAlive{}}}
}
