package sparse

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/fault"
)

// open opens a regular file and nothing else: a link may lead anywhere, a pipe would wait for its other end.
func open(path string, flags int) (*os.File, int64, error) {
	fd, err := unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, named(&os.PathError{Op: "open", Path: path, Err: err}, path)
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fault.New(fault.Invalid, "%s is not a regular file", path)
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// named gives what the system says about a path its kind.
func named(err error, path string) error {
	var cause unix.Errno
	if err == nil || fault.KindOf(err) != fault.Internal || !errors.As(err, &cause) {
		return err
	}
	switch cause {
	case unix.ENOENT:
		return fault.Wrap(fault.NotFound, cause, "%s", path)
	case unix.EEXIST:
		return fault.Wrap(fault.Conflict, cause, "%s", path)
	case unix.ELOOP, unix.ENOTDIR, unix.EISDIR, unix.ENXIO, unix.ENAMETOOLONG:
		return fault.Wrap(fault.Invalid, cause, "%s", path)
	default:
		return err
	}
}

// full says which disk is, and what to do about it; other errors pass.
func full(err error, path string) error {
	if fault.KindOf(err) == fault.Exhausted {
		return fault.Wrap(fault.Exhausted, err, "the disk of %s is full; remove sandboxes and snapshots, or give the data folder a larger disk", path)
	}
	return err
}
