package httpapi

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/users"
)

// linksMax is how many links in a row are followed, as in the kernel.
const linksMax = 40

// files serves /files.
type files struct {
	identity *identity.Store
	// idle is transferIdleTime.
	idle time.Duration
}

// httpError is an answer other than success.
type httpError struct {
	status  int
	message string
}

func (e *httpError) Error() string { return e.message }

func refuse(status int, format string, args ...any) error {
	return &httpError{status, fmt.Sprintf(format, args...)}
}

func (f *files) serve(w http.ResponseWriter, r *http.Request) {
	operation, handle := "read", f.download
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		operation, handle = "write", f.upload
	default:
		w.Header().Set("Allow", "GET, POST")
		writeError(w, http.StatusMethodNotAllowed, "/files takes GET and POST")
		return
	}
	if err := checkFileAccess(r, f.identity.Current().AccessToken, operation, time.Now()); err != nil {
		writeError(w, http.StatusUnauthorized, err.Error())
		return
	}
	user, err := f.user(r)
	if err != nil {
		writeError(w, http.StatusUnauthorized, err.Error())
		return
	}
	handle(w, r, user)
}

// user is named by the query, as a signed URL carries no headers, else as in every other request.
func (f *files) user(r *http.Request) (users.User, error) {
	if name := r.URL.Query().Get("username"); name != "" {
		return f.identity.User(name)
	}
	return f.identity.RequestUser(r.Header)
}

// fileError gives an operating system error the status that clients act on.
func fileError(path string, err error) error {
	var known *httpError
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return refuse(http.StatusNotFound, "path '%s' does not exist", path)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return refuse(http.StatusInsufficientStorage, "not enough space left for '%s'", path)
	case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(http.StatusBadRequest, "path '%s' is a pipe or socket that nobody reads", path)
	case errors.Is(err, syscall.EISDIR):
		return refuse(http.StatusBadRequest, "path '%s' is a directory", path)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL):
		return refuse(http.StatusBadRequest, "path '%s': %v", path, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return refuse(http.StatusForbidden, "path '%s': %v", path, err)
	default:
		return refuse(http.StatusInternalServerError, "path '%s': %v", path, err)
	}
}

func statusOf(err error) int {
	var known *httpError
	if errors.As(err, &known) {
		return known.status
	}
	return http.StatusInternalServerError
}

// followLinks finds the file behind a path's links, also one that does not exist yet, so that writing through a link
// replaces its target and not the link.
func followLinks(path string) (string, error) {
	for range linksMax {
		target, err := os.Readlink(path)
		if err != nil {
			// Not a link, or nothing there.
			return path, nil
		}
		if !filepath.IsAbs(target) {
			target = filepath.Dir(path) + "/" + target
		}
		path = inRealFolder(target)
	}
	return "", &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
}

// inRealFolder takes links and ".." out of the folder of a path: a ".." leads up from where a folder is, not from where a link
// to it lies. A folder that is not there has none to be found.
func inRealFolder(path string) string {
	folder, name := filepath.Split(path)
	if found, err := filepath.EvalSymlinks(folder); err == nil {
		folder = found
	}
	return filepath.Join(folder, name)
}

func resolve(path string, user users.User) (string, error) {
	resolved, err := filesystem.ResolvePath(path, user)
	if err != nil {
		return "", refuse(http.StatusBadRequest, "%v", err)
	}
	return resolved, nil
}
