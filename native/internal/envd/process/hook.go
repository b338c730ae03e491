package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	processpb "aenv/native/gen/process"
)

// Hook is a program of the sandbox's own that the agent runs at a moment only it knows of.
type Hook struct {
	// Path is where the program is; where there is none, nothing is run.
	Path string
	// Tag is what the process is listed under while it runs.
	Tag string
	// Wait is how long others are kept waiting for it. It may go on after that.
	Wait time.Duration
}

// OnRestore brings what was restored up to date: reseeds, reconnects, starts again.
var OnRestore = Hook{Path: "/etc/aenv/on-restore", Tag: "on-restore", Wait: 5 * time.Second}

// RunHook runs a hook as root, with the sandbox's environment and more, and returns at its end or when its time is up. What it
// writes is logged as any process's output. The error says what a person who wrote the hook has to know.
func (s *Service) RunHook(ctx context.Context, hook Hook, env map[string]string) error {
	info, err := os.Stat(hook.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return fmt.Errorf("%s was not run: %w", hook.Path, err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s was not run: it is no executable file (chmod +x)", hook.Path)
	}
	proc, err := s.startHook(hook, env)
	if err != nil {
		return fmt.Errorf("%s was not run: %w", hook.Path, err)
	}
	proc.awaitExit(ctx, hook.Wait)
	if proc.alive() {
		return fmt.Errorf("%s has not ended within %v: it goes on as process %d while others may begin", hook.Path, hook.Wait, proc.pid)
	}
	if end := endEvent(proc.status, false).GetEnd(); end.Error != nil {
		return fmt.Errorf("%s failed: %s", hook.Path, end.GetStatus())
	}
	return nil
}

func (s *Service) startHook(hook Hook, env map[string]string) (*process, error) {
	root, err := s.identity.User("root")
	if err != nil {
		return nil, err
	}
	request := &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: hook.Path, Envs: env, Cwd: proto.String("/")},
		Stdin:   proto.Bool(false),
		Tag:     proto.String(hook.Tag),
	}
	plan, err := newPlan(request, root, s.identity.Current())
	if err != nil {
		return nil, err
	}
	proc, err := s.launch(plan, s.Log)
	if err != nil {
		return nil, err
	}
	s.follow(proc, 0, s.retire)
	return proc, nil
}
