package keeper

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A killed keeper holds its lock until the last of its threads has gone, a moment after it has ended for all who look at it.
const (
	lockTime  = time.Second
	lockPause = 10 * time.Millisecond
)

// lock makes this keeper the only one on its data; the lock is held as long as the file is open and ends with the
// process, however that ends.
func lock(path, pidFile string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	giveUp := time.Now().Add(lockTime)
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(giveUp) {
			break
		}
		time.Sleep(lockPause)
	}
	if err == nil {
		return file, nil
	}
	file.Close()
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	holder := "unknown"
	if raw, err := os.ReadFile(pidFile); err == nil {
		holder = strings.TrimSpace(string(raw))
	}
	return nil, fmt.Errorf("another keeper (pid %s) holds %s; stop it first, or use another data directory", holder, path)
}
