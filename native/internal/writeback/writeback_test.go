package writeback

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deadline is far below the five seconds after which the kernel begins by itself.
const deadline = 3 * time.Second

func TestAFileIsWrittenOutWhileItGrows(t *testing.T) {
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skipf("%s is in memory: nothing is written out", dir)
	}
	file, err := os.Create(filepath.Join(dir, "pages"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	grow := func() {
		t.Helper()
		if _, err := file.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	grow()
	if unwritten(t, file) == 0 {
		t.Skipf("%s is written out at once", dir)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		Follow(file, stop)
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	for range 4 {
		grow()
		for from := time.Now(); unwritten(t, file) > 0; time.Sleep(interval) {
			if time.Since(from) > deadline {
				t.Fatalf("%d pages are still to be written", unwritten(t, file))
			}
		}
	}
}

func unwritten(t *testing.T, file *os.File) uint64 {
	t.Helper()
	var pages unix.Cachestat_t
	err := unix.Cachestat(uint(file.Fd()), &unix.CachestatRange{}, &pages, 0)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel does not tell what is to be written (Linux 6.5 does)")
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages.Dirty + pages.Writeback
}
