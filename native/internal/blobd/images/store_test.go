package images

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/fault"
)

func open(t *testing.T, root string) *Store {
	t.Helper()
	store, err := Open(root, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func closeStore(t *testing.T, store *Store) {
	t.Helper()
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

func digestOf(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

// add stores an image with one file, and returns its digest.
func add(t *testing.T, store *Store, digit string) string {
	t.Helper()
	draft, err := store.NewDraft()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := draft.Discard(); err != nil {
			t.Error(err)
		}
	}()
	out, err := os.Create(draft.ErofsPath())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	root := erofs.NewDir(0o755)
	root.Children["name-"+digit] = &erofs.Inode{Mode: erofs.TypeRegular | 0o644}
	size, err := erofs.Write(t.Context(), out, root, nil, [16]byte{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := draft.Commit(Record{FormatVersion: FormatVersion, Digest: digestOf(digit), SizeBytes: size}); err != nil {
		t.Fatal(err)
	}
	return digestOf(digit)
}

func TestImagesAndLeasesSurviveARestart(t *testing.T) {
	root := t.TempDir()
	store := open(t, root)
	a, b := add(t, store, "a"), add(t, store, "b")
	for _, id := range []string{"one", "../odd id\x00%"} {
		if err := store.Lease(id, a); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(root, slog.New(slog.DiscardHandler)); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a second store on the same folder: %v", err)
	}
	closeStore(t, store)

	store = open(t, root)
	defer closeStore(t, store)
	if got := store.Leases(); !slices.Equal(got, []string{"../odd id\x00%", "one"}) {
		t.Errorf("leases after the restart: %q", got)
	}
	dry, err := store.Collect(true)
	if err != nil || !slices.Equal(dry.Digests, []string{b}) || dry.Bytes == 0 {
		t.Errorf("dry run: %+v, %v", dry, err)
	}
	if _, err := store.Get(b); err != nil {
		t.Errorf("the dry run deleted something: %v", err)
	}
	if wet, err := store.Collect(false); err != nil || !slices.Equal(wet.Digests, []string{b}) {
		t.Errorf("collected %+v, %v", wet, err)
	}
	if _, err := store.Get(b); fault.KindOf(err) != fault.NotFound {
		t.Errorf("collected image: %v", err)
	}
	if err := store.Lease("late", b); fault.KindOf(err) != fault.NotFound {
		t.Errorf("lease on a collected image: %v", err)
	}
}

func TestLeftoversOfACrashAreGone(t *testing.T) {
	root := t.TempDir()
	store := open(t, root)
	a := add(t, store, "a")
	if _, err := store.NewDraft(); err != nil {
		t.Fatal(err)
	}
	closeStore(t, store)
	damaged := filepath.Join(root, "images", strings.Repeat("d", 64))
	for _, path := range []string{filepath.Join(root, "leases", ".tmp-1"), filepath.Join(damaged, "image.json")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store = open(t, root)
	defer closeStore(t, store)
	for _, dir := range []string{"tmp", "leases"} {
		if entries, err := os.ReadDir(filepath.Join(root, dir)); err != nil || len(entries) != 0 {
			t.Errorf("%s holds %v, %v", dir, entries, err)
		}
	}
	if list := store.List(); len(list) != 1 || list[0].Digest != a {
		t.Errorf("images after the crash: %+v", list)
	}
}

func TestAPinnedImageIsNotCollected(t *testing.T) {
	store := open(t, t.TempDir())
	defer closeStore(t, store)
	a := add(t, store, "a")
	unpin := store.Pin(a)
	if got, err := store.Collect(false); err != nil || len(got.Digests) != 0 {
		t.Errorf("collected %v, %v", got, err)
	}
	unpin()
	if got, err := store.Collect(false); err != nil || len(got.Digests) != 1 {
		t.Errorf("collected %v, %v", got, err)
	}
}

func TestWrongDigestsNeverBecomePaths(t *testing.T) {
	store := open(t, t.TempDir())
	defer closeStore(t, store)
	for _, digest := range []string{"", "sha256:..", "sha256:" + strings.Repeat("A", 64), "sha512:" + strings.Repeat("a", 64), digestOf("a") + "/"} {
		if _, err := store.Mount("l", digest); fault.KindOf(err) != fault.Invalid {
			t.Errorf("digest %q: %v", digest, err)
		}
	}
}

func TestOneMountServesAllLeases(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	store := open(t, root)
	a := add(t, store, "a")
	path := mountAs(t, store, "one", a)
	if again := mountAs(t, store, "two", a); again != path {
		t.Errorf("two mounts: %s and %s", path, again)
	}
	closeStore(t, store)

	// The mount outlives the process; the next one goes on with it.
	store = open(t, root)
	defer closeStore(t, store)
	if again := mountAs(t, store, "one", a); again != path {
		t.Errorf("after the restart %s, before %s", again, path)
	}
	release(t, store, "one")
	user, err := os.Open(filepath.Join(path, "name-a"))
	if err != nil {
		t.Fatalf("still leased, yet: %v", err)
	}
	// The last lease goes while a file is open: the mount stays until nobody uses it.
	release(t, store, "two")
	if _, err := os.Stat(filepath.Join(path, "name-a")); err != nil {
		t.Errorf("a mount in use went away: %v", err)
	}
	if got, err := store.Collect(false); err != nil || len(got.Digests) != 0 {
		t.Errorf("collected an image in use: %v, %v", got, err)
	}
	if err := user.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Collect(false); err != nil || !slices.Equal(got.Digests, []string{a}) {
		t.Errorf("collected %v, %v", got, err)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "mnt")); err != nil || len(entries) != 0 {
		t.Errorf("mnt holds %v, %v", entries, err)
	}
}

func mountAs(t *testing.T, store *Store, id, digest string) string {
	t.Helper()
	mounted, err := store.Mount(id, digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(mounted.Dir, "name-"+digest[len(digest)-1:])); err != nil {
		t.Fatal(err)
	}
	return mounted.Dir
}

func release(t *testing.T, store *Store, id string) {
	t.Helper()
	if err := store.Release(id); err != nil {
		t.Fatal(err)
	}
}
