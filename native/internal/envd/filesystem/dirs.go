package filesystem

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"aenv/native/internal/envd/users"
)

// EnsureDirs makes a directory and the missing ones above it, mode 0755 and owned by the user. Those that exist stay as
// they are. Many callers may make the same directories at once. The error is the system's: ENOTDIR where a file is in
// the way.
func EnsureDirs(path string, user users.User) error {
	info, err := os.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if parent := filepath.Dir(path); parent != path {
		if err := EnsureDirs(parent, user); err != nil {
			return err
		}
	}
	err = os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		// Another caller was faster, or this is a link to nowhere.
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			return nil
		}
		return &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return err
	}
	return own(path, user)
}

// own gives a path to the user where the agent may do that; an agent without root's rights acts as itself only.
func own(path string, user users.User) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, int(user.UID), int(user.GID))
}
