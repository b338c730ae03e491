package httpapi

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"aenv/native/internal/envd/filesystem"
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

// write makes content the content of path. The file then belongs to the user; its mode stays, a new one is 0644. A body
// that breaks off leaves the old file, or none.
func (f *files) write(path string, user users.User, metadata map[string]string, content io.Reader) error {
	t, err := newTarget(path, user, metadata)
	if err != nil {
		return err
	}
	if t.old != nil && !t.old.Mode().IsRegular() {
		return writeThrough(t.path, content)
	}
	var head bytes.Buffer
	if _, err := io.Copy(&head, io.LimitReader(content, smallFileBytes+1)); err != nil {
		return err
	}
	if head.Len() <= smallFileBytes && (t.old == nil || t.old.Size() <= smallFileBytes) {
		err := f.writeSmall(t, head.Bytes())
		if !errors.Is(err, syscall.ETXTBSY) {
			return err
		}
		// A program that runs cannot be written, but replaced.
	}
	return f.writeLarge(t, io.MultiReader(&head, content))
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

// writeThrough feeds a device or a pipe.
func writeThrough(path string, content io.Reader) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// writeSmall overwrites in place: the file stays the same one for whoever has it open or linked.
func (f *files) writeSmall(t *target, content []byte) error {
	lock := f.locks.of(t.path)
	lock.Lock()
	defer lock.Unlock()
	file, err := os.OpenFile(t.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, newFileMode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, t.finish(file), file.Close())
	if err != nil && t.old == nil {
		_ = os.Remove(t.path)
	}
	return err
}

// writeLarge fills a new file beside the old one and renames it. Watchers show that as a write (see TemporaryPrefix).
func (f *files) writeLarge(t *target, content io.Reader) error {
	prefix := filesystem.TemporaryPrefix
	if t.old != nil {
		prefix = filesystem.ReplacingPrefix
	}
	temporary := filepath.Join(filepath.Dir(t.path), prefix+rand.Text())
	file, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, newFileMode)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(file, content)
	if err == nil {
		err = t.finish(file)
	}
	if err == nil {
		err = f.putInPlace(t, file, temporary)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}

func (f *files) putInPlace(t *target, file *os.File, temporary string) error {
	lock := f.locks.of(t.path)
	lock.Lock()
	defer lock.Unlock()
	err := os.Rename(temporary, t.path)
	if !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.EXDEV) {
		return err
	}
	// A file that is a mount point of its own (/etc/hosts in many images) can only be written in place.
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	mounted, err := os.OpenFile(t.path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(mounted, file)
	return errors.Join(err, t.finish(mounted), mounted.Close(), os.Remove(temporary))
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
