package archive

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/pieces"
)

// Owner is whom unpacked files belong to.
type Owner struct{ UID, GID uint32 }

// Unpacked counts what was written.
type Unpacked struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// EntryError is a failure with the entry that it happened at, as a path in the sandbox.
type EntryError struct {
	Path string
	Err  error
}

func (e *EntryError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *EntryError) Unwrap() error { return e.Err }

var (
	errOutside   = errors.New("the archive names a place outside of the folder")
	errNoFolder  = errors.New("is in the way: it is not a folder")
	errFolder    = errors.New("is a folder, and a folder is not replaced")
	errNotCopied = errors.New("the archive may hold folders, files and symbolic links only")
)

// IsRefusal tells whether err is about the archive or what is in its way, and not about the disk.
func IsRefusal(err error) bool {
	return errors.Is(err, errOutside) || errors.Is(err, errNoFolder) || errors.Is(err, errFolder) ||
		errors.Is(err, errNotCopied) || errors.Is(err, tar.ErrHeader)
}

// Unpack writes the entries of a tar into a folder that exists. New folders, files and links belong to owner and have the
// modes of the archive; folders that exist stay as they are. A file replaces a file or a link as a whole, never a folder; no
// link that is there is followed. Where one entry fails, those before it stay.
func Unpack(from io.Reader, folder string, owner Owner) (Unpacked, error) {
	info, err := os.Stat(folder)
	if err == nil && !info.IsDir() {
		err = &EntryError{folder, syscall.ENOTDIR}
	}
	if err != nil {
		return Unpacked{}, err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return Unpacked{}, err
	}
	defer root.Close()
	u := &unpacker{root: root, owner: owner, checked: "."}
	in := tar.NewReader(from)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return u.done, nil
		}
		if err != nil {
			return u.done, err
		}
		if err := u.entry(header, in); err != nil {
			return u.done, &EntryError{filepath.Join(folder, filepath.Clean("/"+header.Name)), err}
		}
	}
}

type unpacker struct {
	root  *os.Root
	owner Owner
	done  Unpacked
	// checked is a folder that is known to be reached by folders alone.
	checked string
}

func (u *unpacker) entry(header *tar.Header, content io.Reader) error {
	name := path.Clean(header.Name)
	if header.Name == "" || !filepath.IsLocal(name) {
		return errOutside
	}
	if err := u.makeParents(path.Dir(name)); err != nil {
		return err
	}
	mode := header.FileInfo().Mode() & permissionBits
	switch header.Typeflag {
	case tar.TypeDir:
		return u.folder(name, mode)
	case tar.TypeReg:
		return u.file(name, mode, header.ModTime, header.Size, content)
	case tar.TypeSymlink:
		return u.link(name, header.Linkname)
	default:
		return errNotCopied
	}
}

// makeParents makes what is missing above an entry, and refuses to go through a link.
func (u *unpacker) makeParents(folder string) error {
	if folder == u.checked || folder == "." {
		return nil
	}
	if err := u.makeParents(path.Dir(folder)); err != nil {
		return err
	}
	if err := u.folder(folder, 0o755); err != nil {
		return err
	}
	u.checked = folder
	return nil
}

func (u *unpacker) folder(name string, mode fs.FileMode) error {
	if name == "." {
		return nil
	}
	err := u.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		there, err := u.root.Lstat(name)
		if err == nil && !there.IsDir() {
			return errNoFolder
		}
		return err
	}
	if err != nil {
		return err
	}
	if err := u.own(name); err != nil {
		return err
	}
	return u.root.Chmod(name, mode)
}

func (u *unpacker) file(name string, mode fs.FileMode, modified time.Time, size int64, content io.Reader) error {
	temporary, err := u.temporaryFor(name)
	if err != nil {
		return err
	}
	file, err := u.root.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = pieces.Copy(file, content)
	if err == nil && os.Geteuid() == 0 {
		err = file.Chown(int(u.owner.UID), int(u.owner.GID))
	}
	if err == nil {
		// After the owner, whose change takes special bits away.
		err = file.Chmod(mode)
	}
	if err == nil {
		err = u.root.Chtimes(temporary, time.Time{}, modified)
	}
	if err == nil {
		err = u.put(temporary, name, file)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		_ = u.root.Remove(temporary)
		return err
	}
	u.done.Files++
	u.done.Bytes += size
	return nil
}

// put gives a finished file its name.
func (u *unpacker) put(temporary, name string, file io.ReadSeeker) error {
	err := u.root.Rename(temporary, name)
	if !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.EXDEV) {
		return err
	}
	// A file that is a mount point of its own (/etc/hosts in many images) can only be written in place.
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	mounted, err := u.root.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return errors.Join(pieces.Copy(mounted, file), mounted.Close(), u.root.Remove(temporary))
}

func (u *unpacker) link(name, target string) error {
	temporary, err := u.temporaryFor(name)
	if err != nil {
		return err
	}
	if err := u.root.Symlink(target, temporary); err != nil {
		return err
	}
	err = u.own(temporary)
	if err == nil {
		err = u.root.Rename(temporary, name)
	}
	if err != nil {
		_ = u.root.Remove(temporary)
		return err
	}
	u.done.Files++
	return nil
}

func (u *unpacker) own(name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return u.root.Lchown(name, int(u.owner.UID), int(u.owner.GID))
}

// temporaryFor is the name under which an entry is made before it gets its own, which a folder does not give up.
func (u *unpacker) temporaryFor(name string) (string, error) {
	there, err := u.root.Lstat(name)
	if err == nil && there.IsDir() {
		return "", errFolder
	}
	return path.Join(path.Dir(name), filesystem.TemporaryName(err == nil)), nil
}
