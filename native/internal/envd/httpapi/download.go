package httpapi

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"aenv/native/internal/envd/pieces"
	"aenv/native/internal/envd/users"
)

func (f *files) download(w http.ResponseWriter, r *http.Request, user users.User) {
	path, err := resolve(r.URL.Query().Get("path"), user)
	if err == nil {
		err = send(f.impatient(w), r, path)
	}
	if err != nil {
		writeError(w, statusOf(err), err.Error())
	}
}

const (
	// wholeBytes is up to which size a file is read before anything is sent. Its length is then that of what was read: a
	// file that a program writes anew just now, cut to nothing and filled again, is no broken answer.
	wholeBytes = 64 << 10
	// unsizedBytes is up to which size a file is read that holds more than it says: the kernel's own files say that they
	// are empty.
	unsizedBytes = 1 << 20
)

// send answers with a file's content. An error means that nothing has been sent.
func send(w http.ResponseWriter, r *http.Request, path string) error {
	file, info, err := open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	header := w.Header()
	header.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": filepath.Base(path)}))
	header.Set("Vary", "Accept-Encoding")
	var content io.ReadSeeker = file
	if info.Size() <= wholeBytes {
		text, err := io.ReadAll(io.LimitReader(file, unsizedBytes+1))
		if err != nil {
			return fileError(path, err)
		}
		if len(text) > unsizedBytes && info.Size() == 0 {
			return sendUnsized(w, path, io.MultiReader(bytes.NewReader(text), file))
		}
		content = bytes.NewReader(text)
	}
	if r.Method == http.MethodGet && r.Header.Get("Range") == "" && wantsGzip(r.Header.Get("Accept-Encoding")) {
		return sendGzip(w, path, content)
	}
	http.ServeContent(w, r, filepath.Base(path), info.ModTime(), content)
	return nil
}

// open opens a regular file.
func open(path string) (*os.File, fs.FileInfo, error) {
	// Without O_NONBLOCK, opening a pipe would wait for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) {
		return nil, nil, refuse(http.StatusBadRequest, "path '%s' is not a regular file", path)
	}
	if err != nil {
		return nil, nil, fileError(path, err)
	}
	info, err := file.Stat()
	switch {
	case err != nil:
		err = fileError(path, err)
	case info.IsDir():
		err = refuse(http.StatusBadRequest, "path '%s' is a directory", path)
	case !info.Mode().IsRegular():
		err = refuse(http.StatusBadRequest, "path '%s' is not a regular file", path)
	default:
		return file, info, nil
	}
	file.Close()
	return nil, nil, err
}

// sendUnsized sends what has no size known ahead.
func sendUnsized(w http.ResponseWriter, path string, content io.Reader) error {
	kind := mime.TypeByExtension(filepath.Ext(path))
	if kind == "" {
		kind = "application/octet-stream"
	}
	w.Header().Set("Content-Type", kind)
	if err := pieces.Copy(w, content); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// wantsGzip is true for clients that ask for gzip on purpose. The usual list of everything that an HTTP library can
// decode is no wish: compressing costs the sandbox more time than the bytes cost its near network.
func wantsGzip(accept string) bool {
	gzipped := false
	for coding := range strings.SplitSeq(accept, ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(coding), ";")
		switch {
		case strings.EqualFold(name, "gzip"):
			gzipped = !isRefused(weight)
		case strings.EqualFold(name, "identity"), name == "":
		default:
			return false
		}
	}
	return gzipped
}

// isRefused tells of the weight of a coding that it is zero, in whatever notation.
func isRefused(weight string) bool {
	name, value, _ := strings.Cut(weight, "=")
	q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	return strings.EqualFold(strings.TrimSpace(name), "q") && err == nil && q == 0
}

func sendGzip(w http.ResponseWriter, path string, content io.ReadSeeker) error {
	head := make([]byte, 512)
	n, err := io.ReadFull(content, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return fileError(path, err)
	}
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return fileError(path, err)
	}
	kind := mime.TypeByExtension(filepath.Ext(path))
	if kind == "" {
		kind = http.DetectContentType(head[:n])
	}
	w.Header().Set("Content-Type", kind)
	if n == 0 {
		w.Header().Set("Content-Length", "0")
		return nil
	}
	w.Header().Set("Content-Encoding", "gzip")
	zipped, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	err = pieces.Copy(zipped, content)
	if err == nil {
		err = zipped.Close()
	}
	if err != nil {
		// The headers are out: only a broken connection tells the client that the content is not whole.
		panic(http.ErrAbortHandler)
	}
	return nil
}
