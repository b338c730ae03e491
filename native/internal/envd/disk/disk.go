// Package disk has the machine's disk stand still while the host copies it: written out, with nothing half done, and with no
// way for any program to change it.
package disk

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/runclock"
)

const (
	// variable names the descriptor of the disk's file system, which the machine's init leaves to the agent.
	variable = "AENV_DISK_FD"
	// frozenAtMost is how long the machine may run with a frozen disk: what writes waits, and the host may have died.
	frozenAtMost = 10 * time.Second
)

// FIFREEZE and FITHAW of linux/fs.h.
const (
	freeze = 0xC0045877
	thaw   = 0xC0045878
)

// Disk is a mounted file system, known by a descriptor.
type Disk struct {
	fd int
	// atMost is frozenAtMost, but in tests.
	atMost time.Duration
	// control is the file system's ioctl, but in tests.
	control func(fd int, request uint) error

	clock runclock.Clock
	mu    sync.Mutex
	timer *runclock.Timer
}

// FromEnvironment returns the disk that the machine's init has left, nil when it has left none. What the agent starts gets
// neither the descriptor nor its name. It is called once.
func FromEnvironment() *Disk {
	fd, err := strconv.Atoi(os.Getenv(variable))
	if err != nil || os.Unsetenv(variable) != nil {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil
	}
	return &Disk{fd: fd, atMost: frozenAtMost, control: control}
}

func control(fd int, request uint) error {
	return unix.IoctlSetInt(fd, request, 0)
}

// Freeze returns when everything written is on the disk and the disk stands still. It thaws by itself once the machine has run
// for ten seconds more; another Freeze before that starts them anew.
func (d *Disk) Freeze() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == nil || !d.timer.Stop() {
		// Most of it while programs still go on.
		if err := unix.Syncfs(d.fd); err != nil {
			return fmt.Errorf("write out the disk: %w", err)
		}
	}
	// Busy: it is frozen already.
	if err := d.control(d.fd, freeze); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("freeze the disk: %w", err)
	}
	d.timer = d.clock.AfterFunc(d.atMost, func() { _ = d.Thaw() })
	return nil
}

// Thaw lets programs write again. It is repeatable.
func (d *Disk) Thaw() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == nil {
		return nil
	}
	d.timer.Stop()
	d.timer = nil
	// Invalid: it is not frozen, as somebody inside has thawed it.
	if err := d.control(d.fd, thaw); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("thaw the disk: %w", err)
	}
	return nil
}
