package httpapi

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/users"
)

const (
	metadataHeader = "X-Metadata-"
	// uploadFilesMax bounds the parts of one request.
	uploadFilesMax = 10000
	// rejectDrainTime is how long the rest of a refused body is read, so that the client gets to the answer.
	rejectDrainTime = 10 * time.Second
)

// uploaded is one written file in the answer.
type uploaded struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload writes the files of a request. Where one fails the answer names it; those before it stay written.
func (f *files) upload(w http.ResponseWriter, r *http.Request, user users.User) {
	var written []uploaded
	err := f.impatiently(w, r, func() (err error) {
		written, err = f.receiveAll(r, user)
		return err
	})
	if err != nil {
		reject(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, written)
}

func (f *files) receiveAll(r *http.Request, user users.User) ([]uploaded, error) {
	metadata := metadataOf(r.Header)
	if err := filesystem.CheckMetadata(metadata); err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	body, err := decoded(r)
	if err != nil {
		return nil, err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the Content-Type is missing or malformed: send multipart/form-data or application/octet-stream")
	}
	receive := func(path string, content io.Reader) (uploaded, error) {
		target, err := resolve(path, user)
		if err != nil {
			return uploaded{}, err
		}
		if err := f.write(target, user, metadata, content); err != nil {
			return uploaded{}, fileError(target, err)
		}
		return uploaded{Name: filepath.Base(target), Path: target, Type: "file", Metadata: metadata}, nil
	}
	path := r.URL.Query().Get("path")
	switch kind {
	case "application/octet-stream":
		if path == "" {
			return nil, refuse(http.StatusBadRequest, "the query parameter 'path' is required with application/octet-stream")
		}
		one, err := receive(path, body)
		return []uploaded{one}, err
	case "multipart/form-data":
		return receiveParts(multipart.NewReader(body, params["boundary"]), path, receive)
	default:
		return nil, refuse(http.StatusUnsupportedMediaType, "Content-Type '%s' is not supported: send multipart/form-data or application/octet-stream", kind)
	}
}

func receiveParts(parts *multipart.Reader, path string, receive func(string, io.Reader) (uploaded, error)) ([]uploaded, error) {
	written := []uploaded{}
	seen := map[string]bool{}
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) && len(written) > 0 {
			return written, nil
		}
		if errors.Is(err, io.EOF) {
			return nil, refuse(http.StatusBadRequest, "the body has no part named 'file'")
		}
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "the multipart body is malformed: %v", err)
		}
		// The file name is the whole path, which the multipart package would cut to its last element.
		_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil || params["name"] != "file" {
			continue
		}
		target := params["filename"]
		if path != "" {
			target = path
		}
		if target == "" {
			return nil, refuse(http.StatusBadRequest, "a file has neither the query parameter 'path' nor a file name")
		}
		if seen[target] {
			return nil, refuse(http.StatusBadRequest, "'%s' is uploaded twice in one request", target)
		}
		if len(seen) >= uploadFilesMax {
			return nil, refuse(http.StatusRequestEntityTooLarge, "more than %d files in one request", uploadFilesMax)
		}
		seen[target] = true
		one, err := receive(target, bodyReader{part})
		if err != nil {
			return nil, err
		}
		written = append(written, one)
	}
}

// decoded undoes the content coding of the whole body.
func decoded(r *http.Request) (io.Reader, error) {
	switch coding := strings.ToLower(r.Header.Get("Content-Encoding")); coding {
	case "", "identity":
		return bodyReader{r.Body}, nil
	case "gzip":
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "the body is not gzip: %v", err)
		}
		return bodyReader{unzipped}, nil
	default:
		return nil, refuse(http.StatusUnsupportedMediaType, "Content-Encoding '%s' is not supported: send gzip or none", coding)
	}
}

// bodyReader marks errors of the network and its codings, to tell them from errors of the disk.
type bodyReader struct{ from io.Reader }

func (b bodyReader) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	var known *httpError
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, refuse(http.StatusRequestTimeout, "the body stopped coming")
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.As(err, &known) {
		err = refuse(http.StatusBadRequest, "the body ended early: %v", err)
	}
	return n, err
}

func metadataOf(header http.Header) map[string]string {
	var metadata map[string]string
	for name, values := range header {
		key, ours := strings.CutPrefix(name, metadataHeader)
		if !ours || len(values) == 0 {
			continue
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[strings.ToLower(key)] = values[0]
	}
	return metadata
}

// reject answers while the client may still be sending, and then reads on for a while: a connection closed under a
// sending client would often hide the answer from it.
func reject(w http.ResponseWriter, r *http.Request, err error) {
	control := http.NewResponseController(w)
	// HTTP/2 needs no permission for this.
	_ = control.EnableFullDuplex()
	w.Header().Set("Connection", "close")
	writeError(w, statusOf(err), err.Error())
	if flushErr := control.Flush(); flushErr != nil {
		return
	}
	if deadlineErr := control.SetReadDeadline(time.Now().Add(rejectDrainTime)); deadlineErr != nil {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
}
