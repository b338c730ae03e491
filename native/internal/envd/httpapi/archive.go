package httpapi

import (
	"errors"
	"io"
	"log"
	"net/http"
	"os"

	"aenv/native/internal/envd/archive"
	"aenv/native/internal/envd/users"
)

// archive serves /archive: GET gives what lies at a path as a tar, POST unpacks one into the folder at a path. Names start
// at the home of the user that the request acts as, who owns what is unpacked.
func (s *Server) archive(w http.ResponseWriter, r *http.Request) {
	user, err := s.files.user(r)
	if err != nil {
		writeError(w, http.StatusUnauthorized, err.Error())
		return
	}
	path, err := resolve(r.URL.Query().Get("path"), user)
	if err != nil {
		writeError(w, statusOf(err), err.Error())
		return
	}
	switch r.Method {
	case http.MethodGet:
		sendArchive(s.files.impatient(w), path)
	case http.MethodPost:
		s.files.receiveArchive(w, r, path, user)
	default:
		w.Header().Set("Allow", "GET, POST")
		writeError(w, http.StatusMethodNotAllowed, "/archive takes GET and POST")
	}
}

func sendArchive(w http.ResponseWriter, path string) {
	if _, err := os.Lstat(path); err != nil {
		err = fileError(path, err)
		writeError(w, statusOf(err), err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	if err := archive.Pack(w, path); err != nil {
		// The headers are out: only a broken connection tells the client that the archive is not whole.
		log.Printf("archive of %s: %v", path, err)
		panic(http.ErrAbortHandler)
	}
}

func (f *files) receiveArchive(w http.ResponseWriter, r *http.Request, path string, user users.User) {
	var done archive.Unpacked
	err := f.impatiently(w, r, func() (err error) {
		body := bodyReader{r.Body}
		if done, err = archive.Unpack(body, path, archive.Owner{UID: user.UID, GID: user.GID}); err == nil {
			// An archive may be padded.
			_, err = io.Copy(io.Discard, body)
		}
		return err
	})
	if err == nil {
		writeJSON(w, http.StatusOK, done)
		return
	}
	var entry *archive.EntryError
	switch {
	case archive.IsRefusal(err):
		err = refuse(http.StatusBadRequest, "%v", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = refuse(http.StatusBadRequest, "the archive ended early")
	case errors.As(err, &entry):
		err = fileError(entry.Path, entry.Err)
	default:
		err = fileError(path, err)
	}
	reject(w, r, err)
}
