package filesystem

import (
	"errors"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// readsAtOnce bounds how long one client's question can be kept by others who change files meanwhile.
	readsAtOnce = 64
	// completeEvery is between attempts to watch what could not be watched: each goes through the whole tree.
	completeEvery = 10 * time.Second
	watchMask     = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
)

func (w *watcher) run() {
	defer close(w.done)
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		var failed error
		// The error is that the file is closed.
		err := conn.Read(func(fd uintptr) (done bool) {
			failed = w.read(int(fd))
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err != nil || failed != nil {
			return
		}
	}
}

// catchUp handles what the kernel knows by now, so that what was done before it was called is in the next take.
func (w *watcher) catchUp() {
	w.complete()
	_ = w.withFD(func(fd int) error {
		for range readsAtOnce {
			if err := w.read(fd); err != nil {
				return err
			}
		}
		return nil
	})
}

// complete tries again to watch everything, where that failed before.
func (w *watcher) complete() {
	w.reading.Lock()
	defer w.reading.Unlock()
	if !w.incomplete || time.Since(w.completedAt) < completeEvery {
		return
	}
	w.completedAt = time.Now()
	w.rescan()
	if !w.incomplete {
		// What happened where there was no watch.
		w.overflow()
	}
}

// read handles a buffer of events. The error is the system's, EAGAIN when there are none.
func (w *watcher) read(fd int) error {
	w.reading.Lock()
	defer w.reading.Unlock()
	n, err := unix.Read(fd, w.buffer[:])
	switch {
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return err
	case n <= 0:
		return unix.EIO
	}
	for rest := w.buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
		size := unix.SizeofInotifyEvent + int(event.Len)
		name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:size]), "\x00")
		rest = rest[size:]
		w.handle(event.Wd, event.Mask, event.Cookie, name)
	}
	select {
	case w.ready <- struct{}{}:
	default:
	}
	return nil
}

func (w *watcher) addWatch(dir string, mask uint32) error {
	return w.withFD(func(fd int) error {
		wd, err := unix.InotifyAddWatch(fd, filepath.Join(w.root, dir), mask)
		if err == nil {
			w.dirs[int32(wd)], w.wds[dir] = dir, int32(wd)
		}
		return err
	})
}

// removeWatch ends a watch. One whose directory is gone has ended by itself.
func (w *watcher) removeWatch(wd int32) {
	_ = w.withFD(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(wd))
		return err
	})
}

// withFD lends the inotify descriptor, which cannot be closed and reused meanwhile.
func (w *watcher) withFD(use func(fd int) error) error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var useErr error
	if err := conn.Control(func(fd uintptr) { useErr = use(int(fd)) }); err != nil {
		return err
	}
	return useErr
}
