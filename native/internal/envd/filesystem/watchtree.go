package filesystem

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	filesystempb "aenv/native/gen/filesystem"
)

func (w *watcher) enter(path string, isDir bool) {
	if isDir && w.recursive {
		if err := w.addTree(path, true); isUnwatched(err) {
			w.overflow()
			w.incomplete = true
		}
	}
}

// restart tells the client that events are lost, and finds anew what there is to watch: among them were folders made, moved and
// removed.
func (w *watcher) restart() {
	w.overflow()
	w.rescan()
}

func (w *watcher) rescan() {
	if w.gone {
		w.incomplete = false
		return
	}
	clear(w.announced)
	clear(w.uploads)
	before := w.dirs
	w.dirs, w.wds = map[int32]string{}, map[string]int32{}
	w.incomplete = isUnwatched(w.addTree("", false))
	for wd := range before {
		if _, kept := w.dirs[wd]; !kept {
			w.removeWatch(wd)
		}
	}
}

// addTree watches a directory and, when recursive, those below; announce reports what is in them as created. What cannot be watched
// keeps nothing beside it from it; the error is about the first of it.
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
	var first error
	for _, child := range children {
		path := filepath.Join(dir, child.Name())
		if strings.HasPrefix(child.Name(), TemporaryPrefix) {
			continue
		}
		if announce {
			w.announce(path, child)
		}
		if child.IsDir() {
			if err := w.addTree(path, announce); first == nil && isUnwatched(err) {
				first = err
			}
		}
	}
	return first
}

// isUnwatched tells of addTree's error that there is something which is not watched: more than that it has gone meanwhile.
func isUnwatched(err error) bool {
	return err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR)
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
			w.removeWatch(wd)
			w.forget(dir)
		}
	}
}

func (w *watcher) forget(dir string) {
	delete(w.dirs, w.wds[dir])
	delete(w.wds, dir)
}
