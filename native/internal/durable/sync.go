package durable

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const syncWorkers = 8

// SyncTrees writes everything under the given absolute paths to stable storage: file data, files, folders and each
// path's parent folder. Symbolic links are not followed. It returns the size of the files; fs.ErrNotExist when a path is not
// there.
func SyncTrees(ctx context.Context, paths []string) (bytes uint64, err error) {
	var total atomic.Uint64
	group, ctx := errgroup.WithContext(ctx)
	work := make(chan string)
	for range syncWorkers {
		group.Go(func() error {
			for path := range work {
				size, err := syncOne(path)
				if err != nil {
					return err
				}
				total.Add(size)
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(work)
		for _, path := range paths {
			if err := feed(ctx, filepath.Clean(path), work); err != nil {
				return err
			}
		}
		return nil
	})
	err = group.Wait()
	return total.Load(), err
}

// feed sends a path's files and folders, and the folder it lies in, to the workers.
func feed(ctx context.Context, root string, work chan<- string) error {
	send := func(path string) error {
		select {
		case work <- path:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && errors.Is(err, fs.ErrNotExist) && path != root:
			return nil
		case err != nil:
			return err
		case !entry.IsDir() && !entry.Type().IsRegular():
			return nil
		}
		return send(path)
	})
	if err != nil {
		return err
	}
	return send(filepath.Dir(root))
}

// syncOne makes one file or folder durable. One that vanished meanwhile has nothing left to lose.
func syncOne(path string) (bytes uint64, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		return 0, nil
	}
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if info.Mode().IsRegular() {
		bytes = uint64(info.Size())
	}
	return bytes, file.Sync()
}
