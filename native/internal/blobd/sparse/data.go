// Package sparse moves files that are mostly holes, as disks and memory of machines are: what was never written takes no
// room in a copy, and where the file system can share blocks, nothing is copied at all.
package sparse

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyStepBytes bounds one system call, so that a cancelled copy stops soon.
const copyStepBytes = 64 << 20

// extent is a run of data in a file.
type extent struct{ offset, length int64 }

// nextData finds the first data of file in [at, end); a length of 0 means that there is none. What lies past the file's
// end counts as a hole.
func nextData(file *os.File, at, end int64) (extent, error) {
	if at >= end {
		return extent{}, nil
	}
	data, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
		return extent{}, nil
	}
	if err != nil {
		return extent{}, &os.PathError{Op: "seek data in", Path: file.Name(), Err: err}
	}
	hole, err := unix.Seek(int(file.Fd()), data, unix.SEEK_HOLE)
	if err != nil {
		return extent{}, &os.PathError{Op: "seek hole in", Path: file.Name(), Err: err}
	}
	return extent{data, min(hole, end) - data}, nil
}

// eachData visits the data of file in [from, end), in order, up to the first error.
func eachData(file *os.File, from, end int64, visit func(extent) error) error {
	for at := from; ; {
		found, err := nextData(file, at, end)
		if err != nil || found.length == 0 {
			return err
		}
		if err := visit(found); err != nil {
			return err
		}
		at = found.offset + found.length
	}
}

// Room is asked before bytes are written whether the disk may take them; its error ends the copy.
type Room func(bytes int64) error

// CopyData copies the data among the first length bytes after from in src to dst, the first of them to `to`. Where src has
// a hole, dst keeps what it has. Blocks are shared where the file system can. It returns the bytes of data. room may be nil.
func CopyData(ctx context.Context, room Room, dst *os.File, to int64, src *os.File, from, length int64) (bytes int64, err error) {
	err = eachData(src, from, from+length, func(found extent) error {
		if err := copyExtent(ctx, room, dst, to+found.offset-from, src, found); err != nil {
			return err
		}
		bytes += found.length
		return nil
	})
	return bytes, err
}

// copyExtent copies inside the kernel, else through a buffer.
func copyExtent(ctx context.Context, room Room, dst *os.File, to int64, src *os.File, data extent) error {
	from, length := data.offset, data.length
	for length > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		step := min(length, copyStepBytes)
		if room != nil {
			if err := room(step); err != nil {
				return err
			}
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
			return &os.PathError{Op: "copy", Path: src.Name(), Err: err}
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		length -= int64(n)
	}
	return nil
}
