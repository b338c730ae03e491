package filesystem

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// move renames. Between file systems (a sandbox's /tmp is often one of its own) it copies beside the destination,
// renames the copy and then removes the source. The error has a Connect code.
func move(source, destination string) error {
	err := os.Rename(source, destination)
	if errors.Is(err, syscall.EXDEV) {
		err = moveAcross(source, destination)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST):
		return invalid("'%s' exists and cannot be replaced by '%s'", destination, source)
	default:
		return failure(destination, err)
	}
}

// isBelow tells whether a path, which need not exist, lies below a folder, by whatever links and mounts. Between file systems the
// kernel does not know: a folder that was copied into a mount below itself would have no end.
func isBelow(path string, folder fs.FileInfo) bool {
	for above := filepath.Dir(path); ; above = filepath.Dir(above) {
		real, err := filepath.EvalSymlinks(above)
		if err != nil && above != "/" {
			continue
		}
		for ; ; real = filepath.Dir(real) {
			if info, err := os.Stat(real); err == nil && os.SameFile(info, folder) {
				return true
			}
			if real == filepath.Dir(real) {
				return false
			}
		}
	}
}

func moveAcross(source, destination string) error {
	temporary := filepath.Join(filepath.Dir(destination), TemporaryName(false))
	err := copyTree(source, temporary)
	if err == nil {
		err = os.Rename(temporary, destination)
	}
	if err != nil {
		_ = removeTree(temporary)
		return err
	}
	return removeTree(source)
}

// copyTree copies files, directories and links with owner, mode, time and what clients have said of them. Anything else cannot be
// moved this way.
func copyTree(source, destination string) error {
	info, err := os.Lstat(source)
	if err != nil {
		return err
	}
	switch {
	case info.Mode().IsRegular():
		err = copyFile(source, destination, info)
	case info.IsDir():
		err = copyDir(source, destination)
	case info.Mode()&fs.ModeSymlink != 0:
		var target string
		if target, err = os.Readlink(source); err == nil {
			err = os.Symlink(target, destination)
		}
	default:
		err = fmt.Errorf("'%s' is neither file, directory nor link: %w", source, syscall.EINVAL)
	}
	if err != nil {
		return err
	}
	return copyAttributes(destination, info)
}

func copyAttributes(path string, info fs.FileInfo) error {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err := os.Lchown(path, int(stat.Uid), int(stat.Gid)); err != nil {
			return err
		}
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	// Mode after owner: a change of owner clears the setuid bits.
	if err := os.Chmod(path, info.Mode()); err != nil {
		return err
	}
	when := unix.NsecToTimespec(info.ModTime().UnixNano())
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{when, when}, 0)
}

// copyFile copies the very file that info is of: whoever may write to the folder could have put a link or a pipe there since.
func copyFile(source, destination string, info fs.FileInfo) error {
	from, err := os.OpenFile(source, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	if opened, err := from.Stat(); err != nil || !os.SameFile(opened, info) {
		return errors.Join(fmt.Errorf("'%s' was replaced while it was moved: %w", source, syscall.EBUSY), err)
	}
	to, err := os.OpenFile(destination, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, ReplaceMetadata(to, metadataOfFile(from)), to.Close())
}

func copyDir(source, destination string) error {
	// These could not be removed afterwards, and some of them have no end.
	var system unix.Statfs_t
	if err := unix.Statfs(source, &system); err == nil && IsKernels(&system) {
		return fmt.Errorf("'%s' holds files of the kernel: %w", source, unix.EPERM)
	}
	if err := os.Mkdir(destination, 0o700); err != nil {
		return err
	}
	children, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := copyTree(filepath.Join(source, child.Name()), filepath.Join(destination, child.Name())); err != nil {
			return err
		}
	}
	return copyMetadata(source, destination)
}

func copyMetadata(source, destination string) error {
	metadata := metadataOf(source)
	if len(metadata) == 0 {
		return nil
	}
	to, err := os.Open(destination)
	if err != nil {
		return err
	}
	return errors.Join(ReplaceMetadata(to, metadata), to.Close())
}
