// Package writeback has the kernel write a file to its disk while it still grows, so that less is left for whoever syncs it.
package writeback

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// interval is short beside what a checkpoint of some MiB takes, and long beside a look at a file.
const interval = 4 * time.Millisecond

// Follow has all that comes into the file at path, once there is one, written out within the interval, until stop is closed. It
// waits for none of it, and makes nothing durable: an error is left to whoever syncs.
func Follow(path string, stop <-chan struct{}) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var file *os.File
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		if file == nil {
			opened, err := os.Open(path)
			if err != nil {
				continue
			}
			file = opened
			defer file.Close()
		}
		if unix.SyncFileRange(int(file.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE) != nil {
			return
		}
	}
}
