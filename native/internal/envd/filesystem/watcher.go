package filesystem

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	filesystempb "aenv/native/gen/filesystem"
)

const (
	// TemporaryPrefix begins the names of files that the agent is about to rename to their real name. Watchers, lists and
	// archives hide them: the rename is shown as what it means, a file created or written.
	TemporaryPrefix = ".aenv-upload-"
	// ReplacingPrefix is TemporaryPrefix where the real name exists already.
	ReplacingPrefix = TemporaryPrefix + "over-"

	// watcherEvents bounds what waits for a client, allEvents what waits for all of them; beyond it the client is told that
	// events are lost.
	watcherEvents = 16384
	allEvents     = 65536
	// announcedMax bounds the memory for telling apart what a scan has already reported.
	announcedMax = 65536
)

// TemporaryName is a new name for a file that is going to replace another, or to be a new one.
func TemporaryName(replaces bool) string {
	if replaces {
		return ReplacingPrefix + rand.Text()
	}
	return TemporaryPrefix + rand.Text()
}

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

	// reading guards these after the start.
	reading   sync.Mutex
	buffer    [16 << 10]byte
	dirs      map[int32]string
	wds       map[string]int32
	announced map[string]struct{}
	uploads   map[uint32]bool
	// incomplete tells that there are folders without a watch, since the kernel had none to give.
	incomplete bool
	// completedAt is when that was last tried to be mended.
	completedAt time.Time
	// gone tells that the root is no longer at its path.
	gone bool

	ready chan struct{}
	// waiting is how many events wait in all watchers.
	waiting *atomic.Int64
	mu      sync.Mutex
	queue   []change
	lost    bool
}

// newWatcher starts following root, which must be a directory. The error is the system's.
func newWatcher(root string, recursive bool, waiting *atomic.Int64) (*watcher, error) {
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
		waiting:   waiting,
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
	w.take()
}

// take returns what happened since the last take. lost means that events before these are missing.
func (w *watcher) take() (changes []change, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes, lost = w.queue, w.lost
	w.clearLocked()
	w.lost = false
	return changes, lost
}

func (w *watcher) handle(wd int32, mask, cookie uint32, name string) {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.restart()
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
		if dir == "" {
			w.handleRoot(mask)
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

// handleRoot handles what happens to the watched directory itself. One that is no longer at its path has no further events,
// removed or renamed: what would be told of are other files than those at the client's path.
func (w *watcher) handleRoot(mask uint32) {
	switch {
	case mask&unix.IN_DELETE_SELF != 0:
		w.emit(".", filesystempb.EventType_EVENT_TYPE_REMOVE)
		w.gone = true
	case mask&unix.IN_MOVE_SELF != 0:
		w.emit(".", filesystempb.EventType_EVENT_TYPE_RENAME)
		w.gone = true
		for wd := range w.dirs {
			w.removeWatch(wd)
		}
		clear(w.dirs)
		clear(w.wds)
	case mask&unix.IN_ATTRIB != 0:
		// A removal is one of attributes, too.
		if _, err := os.Stat(w.root); err == nil {
			w.emit(".", filesystempb.EventType_EVENT_TYPE_CHMOD)
		}
	}
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
			// E2B's agent gives the open file to its user, then writes; clients count the events.
			w.emit(path, filesystempb.EventType_EVENT_TYPE_CHMOD)
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

func (w *watcher) emit(name string, kind filesystempb.EventType) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := change{name, kind}
	if kind == filesystempb.EventType_EVENT_TYPE_WRITE && len(w.queue) > 0 && w.queue[len(w.queue)-1] == next {
		return
	}
	if len(w.queue) >= watcherEvents || w.waiting.Load() >= allEvents {
		w.clearLocked()
		w.lost = true
	}
	w.queue = append(w.queue, next)
	w.waiting.Add(1)
}

func (w *watcher) overflow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clearLocked()
	w.lost = true
}

func (w *watcher) clearLocked() {
	w.waiting.Add(-int64(len(w.queue)))
	w.queue = nil
}
