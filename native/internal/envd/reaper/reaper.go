// Package reaper owns every wait of this process.
//
// The agent is pid 1 of its sandbox: besides the children it starts, it inherits every orphan, and it may not wait for
// "any child" in one place and for "my child" in another, because the first would steal the second's exit status. So
// all children are started and collected here, by one loop.
package reaper

import (
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/spawn"
)

// Reaper starts children and collects them, and whatever orphans the kernel hands to this process.
// A process may hold one Reaper only, and nothing else in it may wait for children.
type Reaper struct {
	// pids is held for reading while a pid must not be given back to the kernel (a child that is being registered, a
	// signal on its way), and for writing while children are collected.
	pids sync.RWMutex

	mu    sync.Mutex
	exits map[int]func(unix.WaitStatus)

	shelter *shelter
	signals chan os.Signal
	closing chan struct{}
	done    chan struct{}
}

// New starts the collecting loop. Close ends it.
func New() *Reaper {
	r := &Reaper{
		exits:   map[int]func(unix.WaitStatus){},
		shelter: newShelter(ordinaryScore),
		signals: make(chan os.Signal, 1),
		closing: make(chan struct{}),
		done:    make(chan struct{}),
	}
	signal.Notify(r.signals, unix.SIGCHLD)
	go r.run()
	return r
}

// Close stops collecting. Children that still run are not touched.
func (r *Reaper) Close() {
	signal.Stop(r.signals)
	close(r.closing)
	<-r.done
}

// Start forks and executes a program. onExit is called once with its wait status, by whoever collects it: it must not
// block and must not call the Reaper. The error is a *spawn.Error.
func (r *Reaper) Start(path string, argv []string, attr *spawn.Attr, onExit func(unix.WaitStatus)) (int, error) {
	r.pids.RLock()
	defer r.pids.RUnlock()
	pid, err := r.shelter.fork(func() (int, error) { return spawn.Start(path, argv, attr) })
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.exits[pid] = onExit
	r.mu.Unlock()
	return pid, nil
}

// Hold runs act while the pid of a child that was started here cannot be reused, and tells whether it ran: it does not
// when the child has already been collected. act must not call the Reaper.
func (r *Reaper) Hold(pid int, act func()) bool {
	r.pids.RLock()
	defer r.pids.RUnlock()
	r.mu.Lock()
	_, alive := r.exits[pid]
	r.mu.Unlock()
	if alive {
		act()
	}
	return alive
}

// Look collects who has ended by now, without waiting for the signal that tells of it: a thread has to be woken for that.
func (r *Reaper) Look() {
	for r.collect() {
	}
}

func (r *Reaper) run() {
	defer close(r.done)
	for {
		select {
		case <-r.signals:
			r.Look()
		case <-r.closing:
			return
		}
	}
}

// collect takes one exited child off the kernel and tells whether there may be more.
func (r *Reaper) collect() bool {
	r.pids.Lock()
	defer r.pids.Unlock()
	var status unix.WaitStatus
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if err == unix.EINTR {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	r.mu.Lock()
	onExit := r.exits[pid]
	delete(r.exits, pid)
	r.mu.Unlock()
	if onExit != nil {
		onExit(status)
	}
	return true
}
