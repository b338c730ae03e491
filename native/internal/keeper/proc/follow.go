package proc

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Follow takes up a process that this one did not start. startTicks 0 means whoever has the pid now. The second result
// is false when there is no such process.
func (t *Table) Follow(pid int, startTicks uint64) (*Process, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.follow(pid, startTicks)
}

// Track makes the exit of a process an event. When there is no such process any more the event comes at once, with the
// exit code if it is remembered, and the result is false.
func (t *Table) Track(pid int, startTicks uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, alive := t.follow(pid, startTicks); alive {
		p.published = true
		return true
	}
	exit, known := t.ring.find(pid, startTicks)
	if !known {
		exit = Exit{Code: -1, At: time.Now()}
	}
	t.ring.add(pid, startTicks, exit)
	return false
}

// follow is Follow. Preconditions: mu is held, so that no child is reaped meanwhile.
func (t *Table) follow(pid int, startTicks uint64) (*Process, bool) {
	if p := t.processes[pid]; p != nil && p.pidfd == nil {
		// A child: it cannot be reaped, nor its pid reused, while it is in the table.
		if p.ticks == 0 {
			if st, err := readStat(pid); err == nil {
				p.ticks = st.startTicks
			}
		}
		return p, startTicks == 0 || p.ticks == startTicks
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, false
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	st, err := readStat(pid)
	// Alive after its start time was read: then the pid was not reused between the two, and both are of one process.
	// An orphan that has just ended counts as alive: its exit code is about to be reaped.
	if err != nil || (pidfdExited(pidfd) && st.parent != os.Getpid()) || (startTicks != 0 && st.startTicks != startTicks) {
		pidfd.Close()
		return nil, false
	}
	if p := t.processes[pid]; p != nil && p.ticks == st.startTicks {
		pidfd.Close()
		return p, true
	}
	p := &Process{pid: pid, ticks: st.startTicks, pidfd: pidfd, done: make(chan struct{}), table: t}
	t.enter(p)
	t.work.Add(1)
	go t.awaitPidfd(p)
	return p, true
}

func (t *Table) awaitPidfd(p *Process) {
	defer t.work.Done()
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return // closed already: the process was reaped, or the table is closing
	}
	if err := conn.Read(func(fd uintptr) bool { return exited(int(fd)) }); err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.processes[p.pid] != p {
		return
	}
	if st, err := readStat(p.pid); err == nil && st.parent == os.Getpid() && st.startTicks == p.ticks {
		return // an orphan that fell to us: the reaper is about to learn its exit code
	}
	t.finish(p, Exit{Code: -1, At: time.Now()})
}

// exited asks the kernel whether the process of a pidfd has ended, without waiting.
func exited(fd int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return err == nil && n > 0
		}
	}
}

func pidfdExited(pidfd *os.File) bool {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	if err := conn.Control(func(fd uintptr) { gone = exited(int(fd)) }); err != nil {
		return true
	}
	return gone
}
