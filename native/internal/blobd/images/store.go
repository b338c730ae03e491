// Package images keeps this node's images: their files, who needs them (leases), and where they are mounted.
//
//	<root>/lock                     held while a blobd runs on this folder
//	<root>/images/<hex>/            image.erofs and image.json; appears complete, by one rename
//	<root>/tmp/                     conversions under way; emptied at start
//	<root>/mnt/<hex>/               where an image is mounted, once for all leases; outlives blobd
//	<root>/leases/<lease id>.json   what a lease holds
package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"sync"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/mount"
	"aenv/native/internal/durable"
)

// Store is safe for concurrent use.
type Store struct {
	root string
	lock *os.File
	log  *slog.Logger

	mu     sync.Mutex
	images map[string]Record
	// pins count the operations under way that rely on an image, by digest.
	pins map[string]int
	// leases: lease id → digests.
	leases map[string]map[string]bool
	// mounts are the digests that are mounted now.
	mounts map[string]bool
}

// Open takes the folder over from an earlier blobd: leftovers of crashes go, mounts still up are used on. It fails with
// fault.Unavailable when another blobd has the folder.
func Open(root string, log *slog.Logger) (*Store, error) {
	for _, dir := range []string{"images", "tmp", "mnt", "leases"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			return nil, err
		}
	}
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	lock, err := takeLock(filepath.Join(root, "lock"))
	if err != nil {
		return nil, err
	}
	s := &Store{root: root, lock: lock, log: log, images: map[string]Record{}, pins: map[string]int{},
		leases: map[string]map[string]bool{}, mounts: map[string]bool{}}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

func takeLock(path string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fault.Wrap(fault.Unavailable, err, "another blobd works on %s", filepath.Dir(path)), lock.Close())
	}
	return lock, nil
}

// Root is the store's folder.
func (s *Store) Root() string { return s.root }

// Close gives the folder free. Mounts and leases stay.
func (s *Store) Close() error { return s.lock.Close() }

func (s *Store) load() error {
	if err := emptyDir(filepath.Join(s.root, "tmp")); err != nil {
		return err
	}
	if err := s.loadImages(); err != nil {
		return err
	}
	if err := s.loadLeases(); err != nil {
		return err
	}
	return s.loadMounts()
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return err
}

func (s *Store) loadImages() error {
	entries, err := os.ReadDir(filepath.Join(s.root, "images"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		record, err := readRecord(filepath.Join(s.root, "images", entry.Name()))
		if err != nil {
			// Nothing of ours leaves such a folder; it is kept for whoever wants to look.
			s.log.Error("image ignored", "folder", entry.Name(), "error", err.Error())
			continue
		}
		s.images[record.Digest] = record
	}
	return nil
}

// loadMounts finds what an earlier blobd mounted, and takes down what nobody leases.
func (s *Store) loadMounts() error {
	entries, err := os.ReadDir(filepath.Join(s.root, "mnt"))
	if err != nil {
		return err
	}
	points, err := mount.Points(filepath.Join(s.root, "mnt"))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if points[filepath.Join(s.root, "mnt", entry.Name())] {
			s.mounts["sha256:"+entry.Name()] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmountUnleased()
	return nil
}

// Get is an image's record; fault.NotFound when it is not on this node.
func (s *Store) Get(digest string) (Record, error) {
	if _, err := hexOf(digest); err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get(digest)
}

func (s *Store) get(digest string) (Record, error) {
	record, ok := s.images[digest]
	if !ok {
		return Record{}, fault.New(fault.NotFound, "no image %s on this node", digest)
	}
	return record, nil
}

// List gives all records, oldest first.
func (s *Store) List() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Record, 0, len(s.images))
	for _, record := range s.images {
		list = append(list, record)
	}
	sort.Slice(list, func(i, j int) bool {
		return list[i].StoredAtMs < list[j].StoredAtMs || list[i].StoredAtMs == list[j].StoredAtMs && list[i].Digest < list[j].Digest
	})
	return list
}

// Pin keeps an image, stored or about to be, from being collected until unpin is called.
func (s *Store) Pin(digest string) (unpin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins[digest]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pins[digest]--; s.pins[digest] == 0 {
			delete(s.pins, digest)
		}
	})
}

// Draft is a folder for one conversion.
type Draft struct {
	store *Store
	// Dir is private to the conversion and disappears with it.
	Dir string
}

// NewDraft makes an empty one. Always Discard it in the end.
func (s *Store) NewDraft() (*Draft, error) {
	dir, err := os.MkdirTemp(filepath.Join(s.root, "tmp"), "draft-")
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "image"), 0o700)
	}
	return &Draft{store: s, Dir: dir}, err
}

// ErofsPath is where the image file belongs.
func (d *Draft) ErofsPath() string { return filepath.Join(d.Dir, "image", erofsFile) }

// Discard removes what is left of the draft.
func (d *Draft) Discard() error { return os.RemoveAll(d.Dir) }

// Commit makes the draft's image one of the store's. Its EROFS file is durable already. When the image is there already,
// that one stays.
func (d *Draft) Commit(record Record) error {
	hex, err := hexOf(record.Digest)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	from := filepath.Join(d.Dir, "image")
	if err := durable.WriteFile(filepath.Join(from, recordFile), append(text, '\n'), 0o600); err != nil {
		return err
	}
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.images[record.Digest]; there {
		return nil
	}
	to := filepath.Join(s.root, "images", hex)
	if err := os.Rename(from, to); errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("%s is in the way (it was ignored as damaged at start); remove it and try again", to)
	} else if err != nil {
		return err
	}
	if err := durable.SyncPath(filepath.Dir(to)); err != nil {
		return err
	}
	s.images[record.Digest] = record
	return nil
}
