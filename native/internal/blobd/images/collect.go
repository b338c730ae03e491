package images

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Collected is what Collect deleted, or would delete.
type Collected struct {
	Digests []string
	Bytes   uint64
}

// Collect deletes the images that nobody leases, mounts or is about to lease. Bytes are what becomes free on disk: a file that
// has a hard link elsewhere stays there.
func (s *Store) Collect(dryRun bool) (Collected, error) {
	condemned, collected, err := s.condemn(dryRun)
	for _, dir := range condemned {
		if removal := os.RemoveAll(dir); removal != nil && err == nil {
			err = removal
		}
	}
	return collected, err
}

// condemn takes the images out of the store by renaming them; deleting large files is left for after the lock.
func (s *Store) condemn(dryRun bool) (condemned []string, collected Collected, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !dryRun {
		s.unmountUnleased()
	}
	for _, digest := range slices.Sorted(maps.Keys(s.images)) {
		if s.leased(digest) || s.mounts[digest] || s.pins[digest] > 0 {
			continue
		}
		dir := filepath.Join(s.root, "images", strings.TrimPrefix(digest, "sha256:"))
		bytes := diskBytes(filepath.Join(dir, erofsFile))
		if !dryRun {
			grave, err := os.MkdirTemp(filepath.Join(s.root, "tmp"), "collected-")
			if err != nil {
				return condemned, collected, err
			}
			condemned = append(condemned, grave)
			if err := os.Rename(dir, filepath.Join(grave, "image")); err != nil {
				return condemned, collected, err
			}
			delete(s.images, digest)
		}
		collected.Digests = append(collected.Digests, digest)
		collected.Bytes += bytes
	}
	return condemned, collected, nil
}
