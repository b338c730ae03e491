package httpapi

import (
	"bytes"
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"aenv/native/internal/envd/users"
)

func (f *files) download(w http.ResponseWriter, r *http.Request, user users.User) {
	path, err := resolve(r.URL.Query().Get("path"), user)
	if err == nil {
		err = f.send(w, r, path)
	}
	if err != nil {
		writeError(w, statusOf(err), err.Error())
	}
}

// send answers with a file's content. An error means that nothing has been sent.
func (f *files) send(w http.ResponseWriter, r *http.Request, path string) error {
	content, modified, err := f.open(path)
	if err != nil {
		return err
	}
	defer content.Close()
	header := w.Header()
	header.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": filepath.Base(path)}))
	header.Set("Vary", "Accept-Encoding")
	if r.Method == http.MethodGet && r.Header.Get("Range") == "" && wantsGzip(r.Header.Get("Accept-Encoding")) {
		return sendGzip(w, path, content)
	}
	http.ServeContent(w, r, filepath.Base(path), modified, content)
	return nil
}

// open gives the content of a regular file: a small one as read under the lock, a large one as the open file. The
// kernel's own files say that they are empty and are read to their end.
func (f *files) open(path string) (io.ReadSeekCloser, time.Time, error) {
	real, err := followLinks(path)
	if err != nil {
		return nil, time.Time{}, fileError(path, err)
	}
	lock := f.locks.of(real)
	lock.RLock()
	defer lock.RUnlock()
	// Looked at before it is opened: opening a pipe would wait for its writer.
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, time.Time{}, fileError(path, err)
	case info.IsDir():
		return nil, time.Time{}, refuse(http.StatusBadRequest, "path '%s' is a directory", path)
	case !info.Mode().IsRegular():
		return nil, time.Time{}, refuse(http.StatusBadRequest, "path '%s' is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, fileError(path, err)
	}
	if info.Size() > smallFileBytes {
		return file, info.ModTime(), nil
	}
	small, err := io.ReadAll(io.LimitReader(file, smallFileBytes+1))
	if err != nil {
		file.Close()
		return nil, time.Time{}, fileError(path, err)
	}
	if len(small) > smallFileBytes {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			file.Close()
			return nil, time.Time{}, fileError(path, err)
		}
		return file, info.ModTime(), nil
	}
	file.Close()
	return inMemory{bytes.NewReader(small)}, info.ModTime(), nil
}

type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

// wantsGzip is true for clients that ask for gzip on purpose. The usual list of everything that an HTTP library can
// decode is no wish: compressing costs the sandbox more time than the bytes cost its near network.
func wantsGzip(accept string) bool {
	gzipped := false
	for coding := range strings.SplitSeq(accept, ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(coding), ";")
		switch {
		case strings.EqualFold(name, "gzip"):
			gzipped = strings.TrimSpace(weight) != "q=0"
		case strings.EqualFold(name, "identity"), name == "":
		default:
			return false
		}
	}
	return gzipped
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
	_, err = io.Copy(zipped, content)
	if err == nil {
		err = zipped.Close()
	}
	if err != nil {
		// The headers are out: only a broken connection tells the client that the content is not whole.
		panic(http.ErrAbortHandler)
	}
	return nil
}
