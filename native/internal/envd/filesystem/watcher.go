package filesystem

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	filesystempb "aenv/native/gen/filesystem"
)

const (
	// TemporaryPrefix begins the names of files that the agent is about to rename to their real name. Watchers hide
	// them: the rename is shown as what it means, a file created or written.
	TemporaryPrefix = ".aenv-upload-"
	// ReplacingPrefix is TemporaryPrefix where the real name exists already.
	ReplacingPrefix = TemporaryPrefix + "over-"

	// watcherEvents bounds what waits for a client; beyond it the client is told that events are lost.
	watcherEvents = 16384
	// announcedMax bounds the memory for telling apart what a scan has already reported.
	announcedMax = 65536

	watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
)

// change is one event; name is relative to the watched directory.
type change struct {
	name string
	kind filesystempb.EventType
}

// watcher follows one directory, with all below it when recursive.
//
// Directories that appear while it runs are watched too, and since files may be in them before their watch is there,
// they are scanned: what the scan finds is reported as created, once, whether or not the kernel reports it as well.
type watcher struct {
	root      string
	recursive bool
	file      *os.File
	done      chan struct{}

	// Only the reading goroutine uses these after the start.
	dirs      map[int32]string
	wds       map[string]int32
	announced map[string]struct{}
	uploads   map[uint32]bool

	ready chan struct{}
	mu    sync.Mutex
	queue []change
	lost  bool
}

// newWatcher starts following root, which must be a directory. The error is the system's.
func newWatcher(root string, recursive bool) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	w := &watcher{
		root:      root,
		recursive: recursive,
		file:      os.NewFile(uintptr(fd), "inotify"),
		done:      make(chan struct{}),
		dirs:      map[int32]string{},
		wds:       map[string]int32{},
		announced: map[string]struct{}{},
		uploads:   map[uint32]bool{},
		ready:     make(chan struct{}, 1),
	}
	if err := w.addTree("", false); err != nil {
		w.file.Close()
		return nil, err
	}
	go w.run()
	return w, nil
}

// close ends the watcher and waits for its goroutine.
func (w *watcher) close() {
	w.file.Close()
	<-w.done
}

// take returns what happened since the last take. lost means that events before these are missing.
func (w *watcher) take() (changes []change, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes, lost = w.queue, w.lost
	w.queue, w.lost = nil, false
	return changes, lost
}

func (w *watcher) run() {
	defer close(w.done)
	buffer := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buffer)
		if err != nil || n <= 0 {
			return
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
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
	}
}

func (w *watcher) handle(wd int32, mask, cookie uint32, name string) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.overflow()
		return
	}
	dir, known := w.dirs[wd]
	if !known {
		return
	}
	if mask&unix.IN_IGNORED != 0 {
		w.forget(dir)
		return
	}
	if name == "" {
		if dir == "" && mask&unix.IN_DELETE_SELF != 0 {
			w.emit(".", filesystempb.EventType_EVENT_TYPE_REMOVE)
		}
		return
	}
	if strings.HasPrefix(name, TemporaryPrefix) {
		if mask&unix.IN_MOVED_FROM != 0 {
			w.uploads[cookie] = strings.HasPrefix(name, ReplacingPrefix)
		}
		return
	}
	w.handleEntry(filepath.Join(dir, name), mask, cookie)
}

func (w *watcher) handleEntry(path string, mask, cookie uint32) {
	isDir := mask&unix.IN_ISDIR != 0
	switch {
	case mask&unix.IN_CREATE != 0:
		if _, twice := w.announced[path]; twice {
			delete(w.announced, path)
			return
		}
		w.emit(path, filesystempb.EventType_EVENT_TYPE_CREATE)
		w.enter(path, isDir)
	case mask&unix.IN_MOVED_TO != 0:
		replaced, upload := w.uploads[cookie]
		delete(w.uploads, cookie)
		if !replaced {
			w.emit(path, filesystempb.EventType_EVENT_TYPE_CREATE)
		}
		if upload && !isDir {
			w.emit(path, filesystempb.EventType_EVENT_TYPE_WRITE)
		}
		w.enter(path, isDir)
	case mask&unix.IN_MODIFY != 0:
		w.emit(path, filesystempb.EventType_EVENT_TYPE_WRITE)
	case mask&unix.IN_ATTRIB != 0:
		w.emit(path, filesystempb.EventType_EVENT_TYPE_CHMOD)
	case mask&unix.IN_DELETE != 0:
		w.emit(path, filesystempb.EventType_EVENT_TYPE_REMOVE)
		w.leave(path, isDir)
	case mask&unix.IN_MOVED_FROM != 0:
		w.emit(path, filesystempb.EventType_EVENT_TYPE_RENAME)
		w.leave(path, isDir)
	}
}

func (w *watcher) enter(path string, isDir bool) {
	if isDir && w.recursive {
		if err := w.addTree(path, true); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			w.overflow()
		}
	}
}

// addTree watches a directory and, when recursive, those below; announce reports what is in them as created.
func (w *watcher) addTree(dir string, announce bool) error {
	mask := uint32(watchMask)
	if dir != "" {
		mask |= unix.IN_DONT_FOLLOW
	}
	if err := w.addWatch(dir, mask); err != nil {
		return &os.PathError{Op: "watch", Path: filepath.Join(w.root, dir), Err: err}
	}
	if !w.recursive {
		return nil
	}
	children, err := os.ReadDir(filepath.Join(w.root, dir) + "/")
	if err != nil {
		return err
	}
	for _, child := range children {
		path := filepath.Join(dir, child.Name())
		if strings.HasPrefix(child.Name(), TemporaryPrefix) {
			continue
		}
		if announce {
			w.announce(path, child)
		}
		if child.IsDir() {
			if err := w.addTree(path, announce); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
				return err
			}
		}
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

func (w *watcher) announce(path string, entry os.DirEntry) {
	if _, twice := w.announced[path]; twice {
		return
	}
	if len(w.announced) >= announcedMax {
		clear(w.announced)
	}
	w.announced[path] = struct{}{}
	w.emit(path, filesystempb.EventType_EVENT_TYPE_CREATE)
	if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		w.emit(path, filesystempb.EventType_EVENT_TYPE_WRITE)
	}
}

// leave forgets what has gone, and all below it.
func (w *watcher) leave(path string, isDir bool) {
	delete(w.announced, path)
	if !isDir {
		return
	}
	below := path + "/"
	for name := range w.announced {
		if strings.HasPrefix(name, below) {
			delete(w.announced, name)
		}
	}
	for dir, wd := range w.wds {
		if dir == path || strings.HasPrefix(dir, below) {
			// A watch whose directory is gone has ended by itself.
			_ = w.withFD(func(fd int) error {
				_, err := unix.InotifyRmWatch(fd, uint32(wd))
				return err
			})
			w.forget(dir)
		}
	}
}

func (w *watcher) forget(dir string) {
	delete(w.dirs, w.wds[dir])
	delete(w.wds, dir)
}

func (w *watcher) emit(name string, kind filesystempb.EventType) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := change{name, kind}
	if kind == filesystempb.EventType_EVENT_TYPE_WRITE && len(w.queue) > 0 && w.queue[len(w.queue)-1] == next {
		return
	}
	if len(w.queue) >= watcherEvents {
		w.queue, w.lost = nil, true
	}
	w.queue = append(w.queue, next)
}

func (w *watcher) overflow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue, w.lost = nil, true
}
