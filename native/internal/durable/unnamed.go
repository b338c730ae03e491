package durable

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Unnamed opens a new file (mode 0600) on the file system of a folder, without a name in it: nothing is left of it when it
// is closed, or the process ends, before Link. errors.ErrUnsupported when the file system has no such files.
func Unnamed(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("%w: the file system of %s has no files without a name (O_TMPFILE: %v); keep the data folder on ext4, XFS or btrfs",
			errors.ErrUnsupported, dir, err)
	}
	if err != nil {
		return nil, &os.PathError{Op: "make a file in", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir, "(unnamed)")), nil
}

// Link gives an unnamed file its name. fs.ErrExist when the name is taken.
func Link(file *os.File, path string) error {
	// By way of /proc: linking a descriptor itself needs a capability before Linux 6.10.
	self := "/proc/self/fd/" + strconv.Itoa(int(file.Fd()))
	if err := unix.Linkat(unix.AT_FDCWD, self, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.PathError{Op: "name", Path: path, Err: err}
	}
	return nil
}

// Replace makes an unnamed file durable under a name, instead of what had that name before.
func Replace(file *os.File, path string) error {
	if err := file.Sync(); err != nil {
		return err
	}
	// A file that is there cannot be linked over, only renamed over.
	temp := filepath.Join(filepath.Dir(path), TempPrefix+strconv.FormatUint(rand.Uint64(), 16))
	if err := Link(file, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return SyncPath(filepath.Dir(path))
}
