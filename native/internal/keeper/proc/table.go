// Package proc starts processes, reaps every child and orphan that falls to this process, and follows processes that
// are no children. There is one Table in a process: it collects all children, so nothing else may wait for any.
package proc

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/internal/oomscore"
)

// Table knows the processes somebody waits for. mu is held while a child is forked and entered, and while one is reaped
// and struck out: no exit is lost in between, and no pid in the table can have been given to another process unnoticed.
type Table struct {
	mu        sync.Mutex
	processes map[int]*Process
	ring      *Ring
	homeNetns int
	score     *oomscore.Score
	sigchld   chan os.Signal
	stop      chan struct{}
	work      sync.WaitGroup
}

// Process is a child, or a process that is followed.
type Process struct {
	pid       int
	ticks     uint64   // 0 for a child nobody asked about
	pidfd     *os.File // nil for a child
	published bool     // its exit is an event; orphans' always are
	done      chan struct{}
	exit      Exit
	table     *Table
}

// NewTable makes this process the reaper of all orphans below it, shelters it from the host's running out of memory, and
// starts reaping.
func NewTable() (*Table, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the reaper of orphans: %w", err)
	}
	netns, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	score, err := openScore()
	if err != nil {
		unix.Close(netns)
		return nil, err
	}
	t := &Table{
		processes: map[int]*Process{},
		ring:      newRing(),
		homeNetns: netns,
		score:     score,
		sigchld:   make(chan os.Signal, 1),
		stop:      make(chan struct{}),
	}
	signal.Notify(t.sigchld, syscall.SIGCHLD)
	t.work.Add(1)
	go t.reapLoop()
	return t, nil
}

// Close stops reaping and following. Processes run on.
func (t *Table) Close() {
	signal.Stop(t.sigchld)
	close(t.stop)
	t.mu.Lock()
	for _, p := range t.processes {
		if p.pidfd != nil {
			p.pidfd.Close()
		}
	}
	t.mu.Unlock()
	t.work.Wait()
	t.score.Close()
	unix.Close(t.homeNetns)
}

// Exits are the exits of tracked processes and of orphans.
func (t *Table) Exits() *Ring { return t.ring }

func (t *Table) reapLoop() {
	defer t.work.Done()
	for {
		for t.reapOne() {
		}
		select {
		case <-t.sigchld:
		case <-t.stop:
			return
		}
	}
}

func (t *Table) reapOne() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, code, sig, found := peekExited()
	if !found {
		return false
	}
	// The start time is only worth a read of /proc where somebody will be told.
	p := t.processes[pid]
	var ticks uint64
	if p == nil || p.published || p.pidfd != nil {
		if st, err := readStat(pid); err == nil {
			ticks = st.startTicks
		}
	}
	reap(pid)
	exit := Exit{Code: code, Signal: sig, At: time.Now()}
	if p != nil && p.pidfd != nil && p.ticks != ticks {
		// The entry is of an earlier owner of this pid.
		t.finish(p, Exit{Code: -1, At: exit.At})
		p = nil
	}
	if p == nil {
		t.ring.add(pid, ticks, exit)
		return true
	}
	p.ticks = ticks
	t.finish(p, exit)
	return true
}

// finish strikes a process out and tells those who wait. Preconditions: mu is held, p is in the table.
func (t *Table) finish(p *Process, exit Exit) {
	delete(t.processes, p.pid)
	p.exit = exit
	close(p.done)
	if p.pidfd != nil {
		p.pidfd.Close()
	}
	if p.published {
		t.ring.add(p.pid, p.ticks, exit)
	}
}

// enter puts a process into the table. Preconditions: mu is held.
func (t *Table) enter(p *Process) {
	if earlier := t.processes[p.pid]; earlier != nil {
		t.finish(earlier, Exit{Code: -1, At: time.Now()})
	}
	t.processes[p.pid] = p
}

// Pid is the process's id; it may be reused once Done is closed.
func (p *Process) Pid() int { return p.pid }

// Done is closed when the process is gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit tells how it ended. Preconditions: Done is closed.
func (p *Process) Exit() Exit { return p.exit }

// StartTicks is field 22 of /proc/PID/stat, 0 when the process is gone.
func (p *Process) StartTicks() uint64 {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.table.processes[p.pid] == p && p.ticks == 0 {
		if st, err := readStat(p.pid); err == nil {
			p.ticks = st.startTicks
		}
	}
	return p.ticks
}

// Signal sends a signal to the process; nothing happens when it is gone.
func (p *Process) Signal(sig syscall.Signal) error { return p.signal(p.pid, sig) }

// SignalGroup sends a signal to the process group it leads; nothing happens when it is gone.
func (p *Process) SignalGroup(sig syscall.Signal) error { return p.signal(-p.pid, sig) }

func (p *Process) signal(target int, sig syscall.Signal) error {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	if p.table.processes[p.pid] != p || (p.pidfd != nil && pidfdExited(p.pidfd)) {
		return nil
	}
	if err := syscall.Kill(target, sig); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("send signal %d to process %d: %w", sig, target, err)
	}
	return nil
}
