package logfile

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newTestBounder(t *testing.T, journal string) *Bounder {
	t.Helper()
	b, err := NewBounder(journal, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func write(t *testing.T, file *os.File, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if _, err := fmt.Fprintf(file, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewestHalfStaysAndTheWriterGoesOn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	b := newTestBounder(t, filepath.Join(dir, "journal"))
	file, err := b.Open(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write(t, file, 0, 10)
	b.sweep()
	if raw, _ := os.ReadFile(path); !strings.HasPrefix(string(raw), "line 0\n") {
		t.Errorf("cut below its limit: %q", raw)
	}
	write(t, file, 10, 1000)
	b.sweep()
	write(t, file, 1000, 1001)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	if len(text) > 600 || !strings.HasPrefix(text, "line 9") || !strings.HasSuffix(text, "line 999\nline 1000\n") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}

func TestTheNextKeeperBoundsTheSameFiles(t *testing.T) {
	dir := t.TempDir()
	journal := filepath.Join(dir, "journal")
	kept, deleted := filepath.Join(dir, "kept"), filepath.Join(dir, "deleted")
	first := newTestBounder(t, journal)
	for _, path := range []string{kept, deleted} {
		file, err := first.Open(path, 100)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file, 0, 100)
		file.Close()
	}
	if err := os.Remove(deleted); err != nil {
		t.Fatal(err)
	}
	second := newTestBounder(t, journal)
	second.sweep()
	if info, err := os.Stat(kept); err != nil || info.Size() > 100 {
		t.Errorf("not bounded: %v, %v", info, err)
	}
	if raw, err := os.ReadFile(journal); err != nil || strings.Contains(string(raw), deleted) || !strings.Contains(string(raw), kept) {
		t.Errorf("journal: %q, %v", raw, err)
	}
}

func TestOpenRefusesLinksAndRelativePaths(t *testing.T) {
	dir := t.TempDir()
	b := newTestBounder(t, filepath.Join(dir, "journal"))
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, "log"} {
		if file, err := b.Open(path, 0); err == nil {
			file.Close()
			t.Errorf("%s was opened", path)
		}
	}
}
