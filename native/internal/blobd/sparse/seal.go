package sparse

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/fault"
)

// Seal makes a file unchangeable: root's, mode 0444, and nobody has it open for writing (fault.Conflict otherwise, and when it
// has not the size that it has to have; nil is any).
func Seal(path string, sizeBytes *uint64) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("seal %s: %w", path, err)
		}
	}()
	file, size, err := open(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if sizeBytes != nil && uint64(size) != *sizeBytes {
		return fault.New(fault.Conflict, "it has %d bytes, and not %d", size, *sizeBytes)
	}
	if err := errors.Join(file.Chown(0, 0), file.Chmod(0o444)); err != nil {
		return err
	}
	return refuseWriters(file)
}

// refuseWriters asks the kernel for a lease to read, which it gives nobody while anybody has the file open, or mapped, for writing.
func refuseWriters(file *os.File) error {
	_, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if errors.Is(err, unix.EAGAIN) {
		return fault.Wrap(fault.Conflict, err, "somebody still has it open for writing")
	}
	if err != nil {
		return os.NewSyscallError("F_SETLEASE", err)
	}
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return os.NewSyscallError("F_SETLEASE", err)
}
