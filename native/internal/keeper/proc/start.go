package proc

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spec is a process to start. It gets a session of its own and nothing but the three files.
type Spec struct {
	Path  string // of the executable
	Argv  []string
	Env   []string
	Dir   string // "": that of the keeper
	Files [3]*os.File
	// NetnsPath, when set, is the network namespace the process starts in.
	NetnsPath string
	// Sheltered: it is to outlive others when the host runs out of memory, and so is what it starts.
	Sheltered bool
}

// Start starts a child. Its exit closes Done; it is an event only when it was tracked.
func (t *Table) Start(spec Spec) (*Process, error) {
	if spec.NetnsPath == "" {
		return t.fork(spec)
	}
	type outcome struct {
		process *Process
		err     error
	}
	result := make(chan outcome, 1)
	go func() {
		p, err := t.forkInNetns(spec)
		result <- outcome{p, err}
	}()
	o := <-result
	return o.process, o.err
}

// forkInNetns runs on a goroutine of its own: when the way back fails the thread stays locked and ends with it.
func (t *Table) forkInNetns(spec Spec) (*Process, error) {
	target, err := unix.Open(spec.NetnsPath, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", spec.NetnsPath, err)
	}
	defer unix.Close(target)
	runtime.LockOSThread()
	if err := unix.Setns(target, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter network namespace %s: %w", spec.NetnsPath, err)
	}
	p, err := t.fork(spec)
	if unix.Setns(t.homeNetns, unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return p, err
}

func (t *Table) fork(spec Spec) (*Process, error) {
	fds := make([]uintptr, len(spec.Files))
	for i, file := range spec.Files {
		fds[i] = file.Fd()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !spec.Sheltered {
		back, err := t.score.ForChildren()
		if err != nil {
			return nil, err
		}
		defer back()
	}
	// syscall rather than os: os.StartProcess probes pidfd support with a child of its own, which our reaper would steal.
	pid, err := syscall.ForkExec(spec.Path, spec.Argv, &syscall.ProcAttr{
		Dir:   spec.Dir,
		Env:   spec.Env,
		Files: fds,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	runtime.KeepAlive(spec.Files)
	if err != nil {
		return nil, err
	}
	p := &Process{pid: pid, done: make(chan struct{}), table: t}
	t.enter(p)
	return p, nil
}
