package service

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"aenv/native/gen/aenv/blobd/v1/blobdv1connect"
)

const page = 4096

// disk is a folder on some file system.
type disk struct {
	dir string
	// shares: its files can have blocks in common. Unknown of the one temporary folders lie on.
	shares, known bool
}

// onDisks runs a test with a blobd on the file system of temporary folders, on tmpfs, which cannot share blocks, and on XFS,
// which can.
func onDisks(t *testing.T, test func(t *testing.T, client blobdv1connect.BlobdClient, d disk)) {
	t.Helper()
	for name, open := range map[string]func(*testing.T) disk{
		"temporary": func(t *testing.T) disk { return disk{dir: t.TempDir()} },
		"tmpfs":     func(t *testing.T) disk { return disk{dir: smallDisk(t), known: true} },
		"xfs":       func(t *testing.T) disk { return disk{dir: xfsDisk(t), shares: true, known: true} },
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			test(t, start(t, filepath.Join(d.dir, "blobs")), d)
		})
	}
}

// xfsDisk mounts an empty XFS of 320 MiB.
func xfsDisk(t *testing.T) (root string) {
	t.Helper()
	mkfs, err := exec.LookPath("mkfs.xfs")
	if os.Getuid() != 0 || err != nil {
		t.Skip("SKIPPED: files that share blocks are tested as root with mkfs.xfs (apt-get install xfsprogs) only")
	}
	image, root := filepath.Join(t.TempDir(), "xfs.img"), t.TempDir()
	file, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(320 << 20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mkfs, "-q", "-m", "reflink=1", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.xfs: %v\n%s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, root).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: files that share blocks are tested where XFS can be mounted from a file: %s", bytes.TrimSpace(out))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	return root
}

// pages maps the number of a page to the byte it is full of.
type pages map[int64]byte

// sparseFile makes a file of a size in bytes with some pages of data, and returns its path.
func sparseFile(t *testing.T, path string, size int64, data pages) string {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for number, value := range data {
		part := bytes.Repeat([]byte{value}, int(min(page, size-number*page)))
		if _, err := file.WriteAt(part, number*page); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// run is count pages from first on, full of value.
func run(first, count int64, value byte) pages {
	all := pages{}
	for number := first; number < first+count; number++ {
		all[number] = value
	}
	return all
}

// checkPages reads a whole file: it has these pages, and zeros elsewhere.
func checkPages(t *testing.T, path string, size int64, want pages) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil || int64(len(content)) != size {
		t.Fatalf("%s: %d bytes, want %d, %v", path, len(content), size, err)
	}
	for at := int64(0); at < size; at += page {
		part := content[at:min(at+page, size)]
		if !bytes.Equal(part, bytes.Repeat([]byte{want[at/page]}, len(part))) {
			t.Fatalf("%s: page %d begins with %d, want %d throughout", path, at/page, part[0], want[at/page])
		}
	}
}

// names lists a folder, without blobd's.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != "blobs" {
			list = append(list, entry.Name())
		}
	}
	return list
}

func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat
}

// settledFree is what is free once everything written has its blocks.
func settledFree(t *testing.T, dir string) int64 {
	t.Helper()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		t.Fatal(err)
	}
	return int64(freeBytes(t, dir))
}
