package filesystem

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"aenv/native/internal/envd/users"
)

// ResolvePath makes a path as a client writes it absolute: "~", relative and empty paths start at the user's home.
// The error says that the path cannot be one.
func ResolvePath(path string, user users.User) (string, error) {
	switch {
	case strings.ContainsRune(path, 0):
		return "", fmt.Errorf("path %q contains a NUL byte", path)
	case path == "~" || strings.HasPrefix(path, "~/"):
		return filepath.Join(user.Home, path[1:]), nil
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	default:
		return filepath.Join(user.Home, path), nil
	}
}

// failure gives an operating system error the Connect code that clients act on.
func failure(path string, err error) error {
	var coded *connect.Error
	switch {
	case errors.As(err, &coded):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("path '%s' does not exist", path))
	case errors.Is(err, syscall.ELOOP):
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("path '%s' is a loop of symbolic links", path))
	case errors.Is(err, syscall.ENOTDIR):
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path '%s' leads through something that is not a directory", path))
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL):
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path '%s': %w", path, err))
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("path '%s': %w", path, err))
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("path '%s': no space left", path))
	default:
		return connect.NewError(connect.CodeInternal, fmt.Errorf("path '%s': %w", path, err))
	}
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
