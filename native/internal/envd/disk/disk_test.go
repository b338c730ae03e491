package disk

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fileSystem answers as a kernel does, and notes what it was asked.
type fileSystem struct {
	mu     sync.Mutex
	frozen bool
	asked  []string
}

func (f *fileSystem) control(_ int, request uint) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := map[uint]string{freeze: "freeze", thaw: "thaw"}[request]
	f.asked = append(f.asked, name)
	switch {
	case request == freeze && f.frozen:
		return unix.EBUSY
	case request == thaw && !f.frozen:
		return unix.EINVAL
	}
	f.frozen = request == freeze
	return nil
}

func (f *fileSystem) state() (bool, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frozen, slices.Clone(f.asked)
}

func newDisk(t *testing.T, atMost time.Duration) (*Disk, *fileSystem) {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	system := &fileSystem{}
	return &Disk{fd: int(dir.Fd()), atMost: atMost, control: system.control}, system
}

func TestFreezeAndThawMayBeRepeated(t *testing.T) {
	d, system := newDisk(t, time.Hour)
	for _, step := range []struct {
		act    func() error
		frozen bool
	}{{d.Thaw, false}, {d.Freeze, true}, {d.Freeze, true}, {d.Thaw, false}, {d.Thaw, false}, {d.Freeze, true}} {
		if err := step.act(); err != nil {
			t.Fatal(err)
		}
		if frozen, asked := system.state(); frozen != step.frozen {
			t.Fatalf("frozen: %v after %v", frozen, asked)
		}
	}
	if err := d.Thaw(); err != nil {
		t.Fatal(err)
	}
}

func TestAFrozenDiskThawsByItself(t *testing.T) {
	d, system := newDisk(t, 20*time.Millisecond)
	if err := d.Freeze(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for frozen := true; frozen; frozen, _ = system.state() {
		if time.Now().After(deadline) {
			t.Fatal("it is still frozen")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestAFailureIsToldAndLeavesNothingFrozen(t *testing.T) {
	d, _ := newDisk(t, time.Hour)
	d.control = func(int, uint) error { return unix.EOPNOTSUPP }
	if err := d.Freeze(); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatal(err)
	}
	if err := d.Thaw(); err != nil {
		t.Fatalf("nothing was frozen: %v", err)
	}
}

func TestTheDiskIsTheInitsAndNobodyElses(t *testing.T) {
	t.Setenv(variable, "")
	if d := FromEnvironment(); d != nil {
		t.Fatal("there is none")
	}
	fd, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	t.Setenv(variable, strconv.Itoa(fd))
	d := FromEnvironment()
	if d == nil || d.fd != fd {
		t.Fatalf("%+v", d)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Fatalf("programs would inherit it: %v", err)
	}
	if _, found := os.LookupEnv(variable); found {
		t.Fatal("programs would inherit its name")
	}
	// The one of the init is gone: it is closed, or was never there.
	t.Setenv(variable, "987")
	if d := FromEnvironment(); d != nil {
		t.Fatal("there is no such descriptor")
	}
}
