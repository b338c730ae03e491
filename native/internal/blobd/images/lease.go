package images

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/mount"
	"aenv/native/internal/durable"
)

const maxLeaseIDBytes = 80

// leaseFile is what a lease looks like on disk.
type leaseFile struct {
	LeaseID string   `json:"leaseId"`
	Digests []string `json:"digests"`
}

// CheckLeaseID refuses an id no file can be named after: 1 to 80 bytes are possible.
func CheckLeaseID(id string) error {
	if len(id) == 0 || len(id) > maxLeaseIDBytes {
		return fault.New(fault.Invalid, "lease id has %d bytes, it must have 1 to %d", len(id), maxLeaseIDBytes)
	}
	return nil
}

// leasePath escapes everything but letters, digits, `-` and `_` as %XX.
func (s *Store) leasePath(id string) string {
	var name strings.Builder
	for _, b := range []byte(id) {
		if b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' {
			name.WriteByte(b)
		} else {
			fmt.Fprintf(&name, "%%%02X", b)
		}
	}
	return filepath.Join(s.root, "leases", name.String()+".json")
}

func (s *Store) loadLeases() error {
	dir := filepath.Join(s.root, "leases")
	if err := durable.RemoveTemps(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		var file leaseFile
		path := filepath.Join(dir, entry.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// An unreadable lease might protect anything: better not to start than to collect what is in use.
		if err := json.Unmarshal(text, &file); err != nil || s.leasePath(file.LeaseID) != path {
			return fmt.Errorf("%s is not a lease; remove it once you know that nothing runs on it", path)
		}
		s.leases[file.LeaseID] = map[string]bool{}
		for _, digest := range file.Digests {
			s.leases[file.LeaseID][digest] = true
		}
	}
	return nil
}

// Lease lets an id hold an image. Repeatable. fault.NotFound when the image is not on this node.
func (s *Store) Lease(id, digest string) error {
	if err := CheckLeaseID(id); err != nil {
		return err
	}
	if _, err := hexOf(digest); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease(id, digest)
}

func (s *Store) lease(id, digest string) error {
	if _, err := s.get(digest); err != nil {
		return err
	}
	held := s.leases[id]
	if held[digest] {
		return nil
	}
	digests := append(slices.Collect(maps.Keys(held)), digest)
	slices.Sort(digests)
	text, err := json.Marshal(leaseFile{LeaseID: id, Digests: digests})
	if err != nil {
		return err
	}
	if err := durable.WriteFile(s.leasePath(id), append(text, '\n'), 0o600); err != nil {
		return err
	}
	if held == nil {
		held = map[string]bool{}
		s.leases[id] = held
	}
	held[digest] = true
	return nil
}

// Leases lists all lease ids in order.
func (s *Store) Leases() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.leases))
}

// Release ends all a lease holds, and unmounts what nobody holds any more, where nobody uses it. Repeatable.
func (s *Store) Release(id string) error {
	if err := CheckLeaseID(id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.leases[id]; there {
		path := s.leasePath(id)
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
		delete(s.leases, id)
		if err := durable.SyncPath(filepath.Dir(path)); err != nil {
			return err
		}
	}
	s.unmountUnleased()
	return nil
}

func (s *Store) leased(digest string) bool {
	for _, digests := range s.leases {
		if digests[digest] {
			return true
		}
	}
	return false
}

// Mounted is an image in both its forms: the directory it is shown at, and its EROFS file.
type Mounted struct{ Dir, File string }

// Mount leases the image and shows it at a directory. Repeatable; all leases share one mount. The file can be read by
// everybody who is given a hard link to it.
func (s *Store) Mount(id, digest string) (Mounted, error) {
	if err := CheckLeaseID(id); err != nil {
		return Mounted{}, err
	}
	hex, err := hexOf(digest)
	if err != nil {
		return Mounted{}, err
	}
	mounted := Mounted{Dir: filepath.Join(s.root, "mnt", hex), File: filepath.Join(s.root, "images", hex, erofsFile)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.lease(id, digest); err != nil {
		return Mounted{}, err
	}
	if err := openToAll(mounted.File); err != nil {
		return Mounted{}, err
	}
	// Looking costs nothing, and a mount that somebody else took down must not be handed out as an empty directory.
	if s.mounts[digest] && mount.Is(mounted.Dir) {
		return mounted, nil
	}
	if err := os.MkdirAll(mounted.Dir, 0o755); err != nil {
		return Mounted{}, err
	}
	if err := mount.Attach(mounted.File, mounted.Dir); err != nil {
		return Mounted{}, err
	}
	s.mounts[digest] = true
	return mounted, nil
}

// openToAll gives an image's file its mode, which those that earlier versions stored have not.
func openToAll(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() == imageMode {
		return err
	}
	return os.Chmod(path, imageMode)
}

// unmountUnleased takes down every mount without a lease. One that is in use stays, and is tried again next time.
func (s *Store) unmountUnleased() {
	for digest := range s.mounts {
		if s.leased(digest) {
			continue
		}
		path := filepath.Join(s.root, "mnt", strings.TrimPrefix(digest, "sha256:"))
		busy, err := mount.Detach(path)
		if err != nil {
			s.log.Error("image stays mounted", "digest", digest, "error", err.Error())
		}
		if busy || err != nil {
			continue
		}
		delete(s.mounts, digest)
		if err := os.Remove(path); err != nil {
			s.log.Error("mount directory stays", "path", path, "error", err.Error())
		}
	}
}
