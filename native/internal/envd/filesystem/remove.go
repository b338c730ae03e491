package filesystem

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// removeOpen bounds the descriptors that a tree takes, however deep it is.
	removeOpen = 64
	// removeNames bounds the names of one folder that are in memory.
	removeNames = 1024
)

var errKernels = fmt.Errorf("files of the kernel are not removed: %w", unix.EPERM)

// removeTree removes a path and all below it, and nothing else; a path that is not there is fine. What cannot be removed does not
// keep the rest; the error names the first of it.
//
// os.RemoveAll does not do: it opens what it could not unlink, and relies on the kernel not to follow a link then. gVisor
// follows those that /proc has for a process's root and working directory, so that the whole sandbox was behind /proc/1.
func removeTree(path string) error {
	err := os.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	parent, err := os.OpenFile(filepath.Dir(path), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var around unix.Stat_t
	if err := uninterrupted(func() error { return unix.Fstat(int(parent.Fd()), &around) }); err != nil {
		parent.Close()
		return err
	}
	r := &remover{levels: []*level{{
		name: filepath.Dir(path), dir: parent, dev: around.Dev, ino: around.Ino, names: []string{filepath.Base(path)},
	}}}
	defer r.close()
	return r.run()
}

// remover goes through a tree with a stack of its own: the tree may be deeper than a goroutine's.
type remover struct {
	// levels are the folders from the one around the path down to that which is being emptied.
	levels []*level
	// err is about the first path that could not be removed.
	err error
}

// level is a folder that is being emptied.
type level struct {
	name string
	// dir is nil while many levels below this one are open.
	dir      *os.File
	dev, ino uint64
	// names are read and not tried yet.
	names []string
	// read and failed count the last reading of names; resumable tells that dir can go on after them.
	read, failed int
	resumable    bool
	// first tells that the remover's error lies here or below.
	first bool
}

func (r *remover) top() *level { return r.levels[len(r.levels)-1] }

func (r *remover) close() {
	for _, l := range r.levels {
		l.dir.Close()
	}
}

func (r *remover) run() error {
	for {
		top := r.top()
		if len(top.names) > 0 {
			name := top.names[0]
			top.names = top.names[1:]
			r.remove(name)
			continue
		}
		if len(r.levels) == 1 {
			return r.err
		}
		more, err := top.readNames()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.fail("", err)
		}
		if more {
			continue
		}
		if err := r.leave(); err != nil {
			return err
		}
	}
}

// fail notes that an entry of the top stays; "" is the top itself.
func (r *remover) fail(name string, err error) {
	top := r.top()
	top.failed++
	if r.err != nil {
		return
	}
	var path strings.Builder
	for _, l := range r.levels {
		path.WriteString(strings.TrimSuffix(l.name, "/") + "/")
	}
	r.err = &fs.PathError{Op: "remove", Path: filepath.Clean(path.String() + name), Err: err}
	top.first = true
}

// remove removes an entry of the top, or puts it on top when it is a folder.
func (r *remover) remove(name string) {
	top := r.top()
	fd := int(top.dir.Fd())
	unlinked := uninterrupted(func() error { return unix.Unlinkat(fd, name, 0) })
	if unlinked == nil || errors.Is(unlinked, unix.ENOENT) {
		return
	}
	var is unix.Stat_t
	err := uninterrupted(func() error { return unix.Fstatat(fd, name, &is, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		r.fail(name, err)
	case is.Mode&unix.S_IFMT != unix.S_IFDIR:
		r.fail(name, unlinked)
	default:
		r.enter(name, &is)
	}
}

// enter opens a folder of the top to empty it, the very one that is is of.
func (r *remover) enter(name string, is *unix.Stat_t) {
	top := r.top()
	dir, opened, err := openDirAt(top.dir, name)
	if errors.Is(err, unix.ENOENT) {
		return
	}
	if err == nil && (opened.Dev != is.Dev || opened.Ino != is.Ino) {
		err = unix.EBUSY
	}
	if err == nil && (len(r.levels) == 1 || opened.Dev != top.dev) {
		var system unix.Statfs_t
		if err = uninterrupted(func() error { return unix.Fstatfs(int(dir.Fd()), &system) }); err == nil && IsKernels(&system) {
			err = errKernels
		}
	}
	if err != nil {
		dir.Close()
		// An empty one need not be readable.
		if unix.Unlinkat(int(top.dir.Fd()), name, unix.AT_REMOVEDIR) != nil {
			r.fail(name, err)
		}
		return
	}
	r.levels = append(r.levels, &level{name: name, dir: dir, dev: opened.Dev, ino: opened.Ino})
	if far := len(r.levels) - 1 - removeOpen; far >= 0 {
		r.levels[far].dir.Close()
		r.levels[far].dir = nil
	}
}

// leave removes the emptied top from the folder above it. The error is that the way back is lost.
func (r *remover) leave() error {
	done := r.top()
	defer done.dir.Close()
	r.levels = r.levels[:len(r.levels)-1]
	above := r.top()
	if above.dir == nil {
		dir, opened, err := openDirAt(done.dir, "..")
		if err == nil && (opened.Dev != above.dev || opened.Ino != above.ino) {
			err = unix.EBUSY
		}
		if err != nil {
			dir.Close()
			r.fail(done.name, err)
			return r.err
		}
		above.dir, above.resumable = dir, false
	}
	err := uninterrupted(func() error { return unix.Unlinkat(int(above.dir.Fd()), done.name, unix.AT_REMOVEDIR) })
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		if done.first {
			// What could not be removed alone went with its folder: so it is with cgroups.
			r.err = nil
		}
	case done.first:
		above.first = true
		above.failed++
	default:
		r.fail(done.name, err)
	}
	return nil
}

// readNames reads the next names. A folder is read from its start again after some were removed, for they may have changed places.
func (l *level) readNames() (more bool, err error) {
	if l.read > 0 {
		switch {
		case l.read < removeNames:
			return false, nil
		case l.failed < l.read:
			dir, _, err := openDirAt(l.dir, ".")
			if err != nil {
				return false, err
			}
			l.dir.Close()
			l.dir = dir
		case !l.resumable:
			return false, nil
		}
	}
	l.names, err = l.dir.Readdirnames(removeNames)
	l.read, l.failed, l.resumable = len(l.names), 0, true
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return len(l.names) > 0, err
}

// openDirAt opens a folder, not one behind a link, and tells which it is.
func openDirAt(dir *os.File, name string) (*os.File, unix.Stat_t, error) {
	var opened unix.Stat_t
	var fd int
	err := uninterrupted(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, opened, err
	}
	file := os.NewFile(uintptr(fd), name)
	return file, opened, uninterrupted(func() error { return unix.Fstat(fd, &opened) })
}

func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
