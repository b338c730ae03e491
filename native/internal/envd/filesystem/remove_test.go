package filesystem

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// mount mounts a file system for the time of the test.
func (b *bench) mount(kind, path string) {
	b.t.Helper()
	if os.Geteuid() != 0 {
		b.t.Skip("only root may mount")
	}
	b.must(os.MkdirAll(path, 0o755))
	if err := unix.Mount(kind, path, kind, 0, ""); err != nil {
		b.t.Skipf("no %s can be mounted here: %v", kind, err)
	}
	b.t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// What /proc shows is not below it: the root of a process is the whole sandbox.
func TestRemoveKeepsOutOfTheKernelsFiles(t *testing.T) {
	b := newBench(t)
	b.mount("proc", b.path("image/proc"))
	b.must(os.MkdirAll(b.path("image/usr/bin"), 0o755))
	for path, named := range map[string]string{
		"/proc/self/task": "/proc/self/task",
		b.path("image"):   b.path("image/proc"),
	} {
		err := b.remove(path)
		if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "remove "+named+": files of the kernel") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if left, err := os.ReadDir(b.path("image")); err != nil || len(left) != 1 {
		t.Errorf("beside the kernel's files %v is left, %v", left, err)
	}
	if _, err := os.Stat(b.path("image/proc/self/root")); err != nil {
		t.Error(err)
	}
}

func TestRemoveNamesWhatStaysAndTakesTheRest(t *testing.T) {
	b := newBench(t)
	b.mount("tmpfs", b.path("tree/a/mounted"))
	b.must(os.WriteFile(b.path("tree/a/mounted/file"), nil, 0o644))
	for i := range 2 * removeNames {
		b.must(os.WriteFile(b.path(fmt.Sprintf("tree/%d", i)), nil, 0o644))
	}
	b.must(os.MkdirAll(b.path("outside/dir"), 0o755))
	b.must(os.Symlink(b.path("outside"), b.path("tree/link")))
	if err := b.remove(b.path("tree")); err == nil || !strings.Contains(err.Error(), "remove "+b.path("tree/a/mounted")+": ") {
		t.Errorf("a mount point is removed: %v", err)
	}
	if left, err := os.ReadDir(b.path("tree")); err != nil || len(left) != 1 {
		t.Errorf("%d entries are left, %v", len(left), err)
	}
	b.must(unix.Unmount(b.path("tree/a/mounted"), 0))
	b.must(b.remove(b.path("tree")))
	if _, err := os.Stat(b.path("outside/dir")); err != nil {
		t.Error("what a link leads to is removed:", err)
	}
	if err := b.remove(b.path("tree/a")); err != nil {
		t.Error("below what is gone:", err)
	}
}

// A tree may be deeper than the agent has descriptors, and than a path is long.
func TestRemoveOfADeepTree(t *testing.T) {
	b := newBench(t)
	at, err := unix.Open(b.dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	b.must(err)
	for range 10_000 {
		b.must(unix.Mkdirat(at, "deep", 0o755))
		b.must(unix.Symlinkat("..", at, "link"))
		below, err := unix.Openat(at, "deep", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		b.must(err)
		b.must(unix.Close(at))
		at = below
	}
	b.must(unix.Close(at))
	var limit unix.Rlimit
	b.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	b.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4 * removeOpen, Max: limit.Max}))
	err = b.remove(b.path("deep"))
	b.must(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	b.must(err)
	if _, err := os.Lstat(b.path("deep")); !os.IsNotExist(err) {
		t.Error(err)
	}
}
