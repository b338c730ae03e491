// Package writeback has the kernel write a file to its disk while it still grows, so that less is left for whoever syncs it.
package writeback

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// interval is short beside what a checkpoint of some MiB takes, and long beside a look at a file.
const interval = 4 * time.Millisecond

// Follow has all that comes into the file written out within the interval, until stop is closed. It may wait for room in the disk's
// queue, never for the disk, and makes nothing durable: an error is left to whoever syncs.
func Follow(file *os.File, stop <-chan struct{}) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		if unix.SyncFileRange(int(file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE) != nil {
			return
		}
	}
}
