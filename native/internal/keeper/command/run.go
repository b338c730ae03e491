// Package command runs commands to their end: arguments in, output and exit code out.
package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"aenv/native/internal/keeper/logfile"
	"aenv/native/internal/keeper/proc"

	"golang.org/x/sys/unix"
)

const (
	defaultTimeout = 60 * time.Second
	// width bounds the commands that run at once, and with them buffers and pipes.
	width = 128
)

// ErrInvalid marks a spec that asks for something impossible.
var ErrInvalid = errors.New("invalid command")

// Spec is one command. Without LogFile and DiscardOutput its output is returned.
type Spec struct {
	Argv          []string
	Env           map[string]string // the whole environment; PATH is added when missing
	Dir           string
	Stdin         []byte
	Timeout       time.Duration // 0: a minute
	LogFile       string
	LogLimitBytes int64
	DiscardOutput bool
	NetnsPath     string
}

// Result is what a command did.
type Result struct {
	Pid       int
	Exit      proc.Exit
	Stdout    []byte
	Stderr    []byte
	Truncated bool
	TimedOut  bool
}

// Runner runs commands as children of the table.
type Runner struct {
	table *proc.Table
	logs  *logfile.Bounder
	null  *os.File
	slots chan struct{}
}

// NewRunner returns a runner.
func NewRunner(table *proc.Table, logs *logfile.Bounder) (*Runner, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &Runner{table: table, logs: logs, null: null, slots: make(chan struct{}, width)}, nil
}

// Run runs a command and returns when it itself has ended, whatever it left running. An error means it was not started.
// On timeout its process group is killed.
func (r *Runner) Run(spec Spec) (Result, error) {
	if err := validate(spec); err != nil {
		return Result{}, err
	}
	r.slots <- struct{}{}
	defer func() { <-r.slots }()
	s, err := r.openStreams(spec)
	if err != nil {
		return Result{}, err
	}
	process, err := r.start(spec, s)
	s.closeGiven()
	if err != nil {
		s.abandon()
		return Result{}, fmt.Errorf("cannot start %s: %w", spec.Argv[0], err)
	}
	s.pump(spec.Stdin)
	timedOut := await(process, spec.Timeout)
	result := Result{Pid: process.Pid(), Exit: process.Exit(), TimedOut: timedOut}
	s.finish(&result)
	return result, nil
}

func validate(spec Spec) error {
	switch {
	case len(spec.Argv) == 0 || spec.Argv[0] == "":
		return fmt.Errorf("%w: argv is empty", ErrInvalid)
	case spec.Dir != "" && !filepath.IsAbs(spec.Dir):
		return fmt.Errorf("%w: cwd %q is not absolute", ErrInvalid, spec.Dir)
	case spec.LogFile != "" && spec.DiscardOutput:
		return fmt.Errorf("%w: log_file and discard_output exclude each other", ErrInvalid)
	}
	return nil
}

func (r *Runner) start(spec Spec, s *streams) (*proc.Process, error) {
	path, err := Find(spec.Argv[0], spec.Env)
	if err != nil {
		return nil, err
	}
	if spec.Dir != "" {
		// The kernel reports a missing folder and a missing program with the same code.
		if _, err := os.Stat(spec.Dir); err != nil {
			return nil, fmt.Errorf("working directory: %w", err)
		}
	}
	return r.table.Start(proc.Spec{
		Path: path, Argv: spec.Argv, Env: Environment(spec.Env), Dir: spec.Dir, Files: s.given, NetnsPath: spec.NetnsPath,
	})
}

// await waits for the end of the command and reports whether it had to be killed for its time.
func await(process *proc.Process, timeout time.Duration) bool {
	if timeout == 0 {
		timeout = defaultTimeout
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-process.Done():
		return false
	case <-timer.C:
	}
	// The leader is not reaped yet, so the group's number is still its own.
	_ = process.SignalGroup(syscall.SIGKILL)
	<-process.Done()
	return process.Exit().Signal == int(unix.SIGKILL)
}
