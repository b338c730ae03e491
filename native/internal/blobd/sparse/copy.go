package sparse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"aenv/native/internal/durable"
)

// Copied tells how a copy came about.
type Copied struct {
	// Shared: the files have their blocks in common, nothing was copied.
	Shared bool
	// Bytes of data that were copied.
	Bytes int64
}

// Copy makes target, which must not exist (fault.Conflict), a copy of source with the same size and holes, mode 0600. It
// appears whole, or not at all. It is not synced. source must not change meanwhile.
func Copy(ctx context.Context, source, target string) (copied Copied, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("copy %s to %s: %w", source, target, full(err, target))
		}
	}()
	src, size, err := open(source, unix.O_RDONLY)
	if err != nil {
		return Copied{}, err
	}
	defer src.Close()
	// Before any work; Link will not overwrite, either.
	if _, err := os.Lstat(target); err == nil {
		return Copied{}, named(unix.EEXIST, target)
	}
	dst, err := durable.Unnamed(filepath.Dir(target))
	if err != nil {
		return Copied{}, named(err, filepath.Dir(target))
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if copied, err = fill(ctx, dst, src, size); err != nil {
		return Copied{}, err
	}
	if err := ctx.Err(); err != nil {
		return Copied{}, err
	}
	return copied, named(durable.Link(dst, target), target)
}

func fill(ctx context.Context, dst, src *os.File, size int64) (Copied, error) {
	err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	if err == nil {
		return Copied{Shared: true}, nil
	}
	if !cannotShare(err) {
		return Copied{}, os.NewSyscallError("FICLONE", err)
	}
	if err := dst.Truncate(size); err != nil {
		return Copied{}, err
	}
	bytes, err := CopyData(ctx, nil, dst, 0, src, 0, size)
	return Copied{Bytes: bytes}, err
}

// cannotShare tells a file system that has no shared blocks, or two of them, from a failure.
func cannotShare(err error) bool {
	for _, reason := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}
