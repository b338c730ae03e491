package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSyncTreesWalksEverythingOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/x", "a/b/y", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Neither may be opened: one leads elsewhere, the other would wait for a writer.
	if err := os.Symlink("../other", filepath.Join(dir, "a", "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "a", "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	bytes, err := SyncTrees(t.Context(), []string{filepath.Join(dir, "a"), filepath.Join(dir, "other")})
	if err != nil || bytes != 3000 {
		t.Errorf("%d bytes, %v; want 3000", bytes, err)
	}
	if _, err := SyncTrees(t.Context(), []string{filepath.Join(dir, "none")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing path: %v", err)
	}
}

func TestWriteFileReplacesAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	entries, dirErr := os.ReadDir(filepath.Dir(path))
	if err != nil || dirErr != nil || string(text) != "two" || len(entries) != 1 {
		t.Errorf("%q, %d entries, %v %v", text, len(entries), err, dirErr)
	}
}
