package erofs

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyStepBytes bounds one system call, so that a cancelled conversion stops soon.
const copyStepBytes = 64 << 20

// copyRange copies length bytes of src to dst, holes left out (dst is fresh, so they stay holes). What lies past src's
// end counts as a hole. room is asked before each step.
func copyRange(ctx context.Context, room Room, dst *os.File, to int64, src *os.File, from, length int64) error {
	end := from + length
	at := from
	for at < end {
		data, err := unix.Seek(int(src.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		if data >= end {
			return nil
		}
		hole, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		hole = min(hole, end)
		if err := copyExtent(ctx, room, dst, to+data-from, src, data, hole-data); err != nil {
			return err
		}
		at = hole
	}
	return nil
}

// copyExtent copies inside the kernel (sharing blocks where the file system can), else through a buffer.
func copyExtent(ctx context.Context, room Room, dst *os.File, to int64, src *os.File, from, length int64) error {
	for length > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		step := min(length, copyStepBytes)
		if err := room(step); err != nil {
			return err
		}
		n, err := unix.CopyFileRange(int(src.Fd()), &from, int(dst.Fd()), &to, int(step), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
			if _, err := io.CopyN(io.NewOffsetWriter(dst, to), io.NewSectionReader(src, from, step), step); err != nil {
				return err
			}
			from, to, n = from+step, to+step, int(step)
		case err != nil:
			return os.NewSyscallError("copy_file_range", err)
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		length -= int64(n)
	}
	return nil
}
