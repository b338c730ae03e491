package httpapi

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/pieces"
	"aenv/native/internal/envd/users"
)

const newFileMode = 0o644

// target is the place of a write.
type target struct {
	// path is behind all links.
	path string
	// old is nil where nothing exists yet.
	old      fs.FileInfo
	user     users.User
	metadata map[string]string
}

// write makes content the content of path: whoever reads it meanwhile gets the old content or the new one, whole. The file
// then belongs to the user; its mode and what others have attached to it stay, a new one is 0644. A body that breaks off leaves
// the old file, or none. Other hard links of the file, and programs that have it open, keep the old content.
func (f *files) write(path string, user users.User, metadata map[string]string, content io.Reader) error {
	t, err := newTarget(path, user, metadata)
	if err != nil {
		return err
	}
	if t.old != nil && !t.old.Mode().IsRegular() {
		return writeThrough(t.path, content, f.idle)
	}
	file, temporary, err := t.createBeside()
	if err != nil {
		return err
	}
	if file == nil {
		return t.writeInPlace(content)
	}
	defer file.Close()
	err = pieces.Copy(file, content)
	if err == nil {
		if t.old != nil {
			// Before the mode, which is a part of an access list.
			filesystem.KeepForeignAttributes(file, t.path)
		}
		err = t.finish(file)
	}
	if err == nil {
		err = t.putInPlace(file, temporary)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}

func newTarget(path string, user users.User, metadata map[string]string) (*target, error) {
	path, err := followLinks(path)
	if err != nil {
		return nil, err
	}
	t := &target{path: path, user: user, metadata: metadata}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil, syscall.EISDIR
	case err == nil:
		t.old = info
		return t, nil
	case errors.Is(err, fs.ErrNotExist):
		return t, filesystem.EnsureDirs(filepath.Dir(path), user)
	default:
		return nil, err
	}
}

// writeThrough feeds a device or a pipe, as it comes. It gives up when nobody has taken anything for the time of idle.
func writeThrough(path string, content io.Reader, idle time.Duration) error {
	// Without O_NONBLOCK, opening a pipe would wait for its reader, and with it a thread.
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(impatientFile{file, idle}, content)
	return errors.Join(err, file.Close())
}

type impatientFile struct {
	file *os.File
	idle time.Duration
}

func (f impatientFile) Write(p []byte) (int, error) {
	// What is always ready has no deadlines and needs none.
	if err := f.file.SetWriteDeadline(time.Now().Add(f.idle)); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return 0, err
	}
	return f.file.Write(p)
}

// createBeside opens a new file in the target's folder. Watchers show its rename as a write (see TemporaryPrefix). It gives
// no file, and no error, where the target is there and its folder takes no others: such a file, as those in /proc and /sys
// are, can be written in place only.
func (t *target) createBeside() (file *os.File, path string, err error) {
	path = filepath.Join(filepath.Dir(t.path), filesystem.TemporaryName(t.old != nil))
	file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, newFileMode)
	if err != nil && t.old != nil && !isShortage(err) {
		return nil, "", nil
	}
	return file, path, err
}

// isShortage tells that the disk or the agent has no room for one more file.
func isShortage(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (t *target) writeInPlace(content io.Reader) error {
	file, err := os.OpenFile(t.path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return errors.Join(pieces.Copy(file, content), t.finish(file), file.Close())
}

// putInPlace gives a written file its real name.
func (t *target) putInPlace(file *os.File, temporary string) error {
	err := os.Rename(temporary, t.path)
	if !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.EXDEV) {
		return err
	}
	// A file that is a mount point of its own (/etc/hosts in many images) can only be written in place.
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return errors.Join(t.writeInPlace(file), os.Remove(temporary))
}

// finish gives a written file its owner, mode and metadata. The kernel's own files have none of these to give.
func (t *target) finish(file *os.File) error {
	if os.Geteuid() == 0 {
		if err := file.Chown(int(t.user.UID), int(t.user.GID)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	if t.old != nil {
		if err := file.Chmod(t.old.Mode()); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return filesystem.ReplaceMetadata(file, t.metadata)
}
