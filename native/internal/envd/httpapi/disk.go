package httpapi

import (
	"log"
	"net/http"

	"aenv/native/internal/envd/disk"
)

// postDisk freezes or thaws the disk for who holds the init key.
func (s *Server) postDisk(act func(*disk.Disk) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.Identity.HoldsKey(r.Header.Get(initKeyHeader)) {
			refuseKey(w)
			return
		}
		if s.Disk == nil {
			writeError(w, http.StatusNotImplemented, "this machine was booted without a disk that could be frozen")
			return
		}
		if err := act(s.Disk); err != nil {
			log.Printf("%s: %v", r.URL.Path, err)
			writeError(w, http.StatusInternalServerError, err.Error())
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}
