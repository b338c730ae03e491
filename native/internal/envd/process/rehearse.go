package process

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	processpb "aenv/native/gen/process"
)

// rehearsalMax is how long a rehearsal may take; it is killed then.
const rehearsalMax = 2 * time.Second

// Rehearse starts and ends a command that does nothing, as the default user: what a restored machine does for the first time is
// slow, and so the first command that somebody waits for is not the first. The shell, which clients ask for, reads none of
// the user's files. The process is not to be found afterwards, nor in the log. Where there is no such shell, nothing is run. It
// tells whether a command came to its end.
func (s *Service) Rehearse(ctx context.Context) bool {
	user, err := s.identity.User("")
	if err != nil {
		return false
	}
	plan, err := newPlan(&processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"--noprofile", "--norc", "-c", ":"}, Cwd: proto.String("/")},
		Stdin:   proto.Bool(false),
	}, user, s.identity.Current())
	if err != nil {
		return false
	}
	proc, err := s.launch(plan, nil)
	if err != nil {
		return false
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		proc.follow(&s.hostKills, s.reaper.Look, func() {})
		s.table.forget(proc)
	}()
	proc.awaitExit(ctx, rehearsalMax)
	if proc.alive() {
		s.kill(proc)
	}
	<-ended
	return proc.status.Exited()
}
