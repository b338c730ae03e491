package erofs_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/mount"
)

// sample is a tree with everything that is hard to lay out; its one spool is given back, too.
func sample(t *testing.T) (*erofs.Inode, *os.File) {
	t.Helper()
	spool, err := os.Create(filepath.Join(t.TempDir(), "spool"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = spool.Close() })
	// Two files; the second is 1 GiB with one block of data in its middle.
	for offset, text := range map[int64]string{0: "hello", 4096 + 512<<20: "middle"} {
		if _, err := spool.WriteAt([]byte(text), offset); err != nil {
			t.Fatal(err)
		}
	}
	root := erofs.NewDir(0o755)
	file := &erofs.Inode{Mode: erofs.TypeRegular | 0o4755, UID: 3_000_000, GID: 7, MtimeSec: -5, MtimeNsec: 6, SizeBytes: 5,
		Xattrs: []erofs.Xattr{{Name: "security.capability", Value: "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"},
			{Name: "user.big", Value: strings.Repeat("v", 6000)}, {Name: "user.empty"}}}
	root.Children["file"], root.Children["hard"] = file, file
	root.Children["sparse"] = &erofs.Inode{Mode: erofs.TypeRegular | 0o600, SizeBytes: 1 << 30, Offset: 4096}
	root.Children["empty"] = &erofs.Inode{Mode: erofs.TypeRegular}
	root.Children["null"] = &erofs.Inode{Mode: erofs.TypeChar | 0o666, Rdev: erofs.EncodeDevice(1, 3)}
	root.Children["disk"] = &erofs.Inode{Mode: erofs.TypeBlock | 0o660, Rdev: erofs.EncodeDevice(259, 70000)}
	root.Children["pipe"] = &erofs.Inode{Mode: erofs.TypeFifo | 0o644}
	root.Children["link"] = &erofs.Inode{Mode: erofs.TypeSymlink | 0o777, Target: strings.Repeat("t/", 2000) + "end"}
	root.Children["odd \xe9\n*"] = &erofs.Inode{Mode: erofs.TypeRegular}
	big := erofs.NewDir(0o1777)
	root.Children["big"] = big
	for i := range 20_000 {
		big.Children[fmt.Sprintf("%c name %d %s", "!+-.0~"[i%6], i, strings.Repeat("n", i%200))] = &erofs.Inode{Mode: erofs.TypeRegular | 0o644}
	}
	return root, spool
}

func write(t *testing.T, path string) int64 {
	t.Helper()
	root, spool := sample(t)
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	size, err := erofs.Write(t.Context(), out, root, []*os.File{spool}, [16]byte{1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return size
}

func TestTheSameTreeGivesTheSameBytes(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"))
	write(t, filepath.Join(dir, "b"))
	var contents [2][]byte
	for i, name := range []string{"a", "b"} {
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		// All metadata, and the small file behind it.
		contents[i] = make([]byte, 8<<20)
		if _, err := file.ReadAt(contents[i], 0); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(contents[0], contents[1]) {
		t.Error("two files of one tree differ")
	}
}

func TestSparseFilesStaySparse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	size := write(t, path)
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	if size < 1<<30 || stat.Size != size || stat.Blocks*512 > 64<<20 {
		t.Errorf("size %d (Write said %d), on disk %d; want over 1 GiB, the same, few MiB", stat.Size, size, stat.Blocks*512)
	}
}

func TestTheKernelReadsIt(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	path, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	write(t, path)
	if err := mount.Attach(path, dir); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if busy, err := mount.Detach(dir); busy || err != nil {
			t.Errorf("unmount: busy %v, %v", busy, err)
		}
	}()
	root, _ := sample(t)
	compareDir(t, dir, root)
	compareDir(t, filepath.Join(dir, "big"), root.Children["big"])
	compareFiles(t, dir, root)
}

// compareDir checks names and lookups.
func compareDir(t *testing.T, path string, want *erofs.Inode) {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(want.Children) {
		t.Errorf("%s has %d entries, want %d", path, len(entries), len(want.Children))
	}
	for name, n := range want.Children {
		var stat unix.Stat_t
		if err := unix.Lstat(filepath.Join(path, name), &stat); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		got := fmt.Sprint(stat.Mode, stat.Uid, stat.Gid, stat.Mtim.Sec, stat.Mtim.Nsec, stat.Rdev)
		expected := fmt.Sprint(n.Mode, n.UID, n.GID, n.MtimeSec, n.MtimeNsec, decode(n.Rdev))
		if got != expected {
			t.Errorf("%q: mode, owner, time, device are %s, want %s", name, got, expected)
		}
	}
}

func decode(rdev uint32) uint64 {
	return unix.Mkdev(rdev>>8&0xfff, rdev&0xff|rdev>>12&0xfff00)
}

func compareFiles(t *testing.T, dir string, root *erofs.Inode) {
	t.Helper()
	var file, hard unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "file"), &file); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat(filepath.Join(dir, "hard"), &hard); err != nil || file.Ino != hard.Ino || file.Nlink != 2 {
		t.Errorf("hard links: inodes %d and %d, %d links (%v)", file.Ino, hard.Ino, file.Nlink, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "hard")); err != nil || string(text) != "hello" {
		t.Errorf("hard holds %q, %v", text, err)
	}
	for _, x := range root.Children["file"].Xattrs {
		value := make([]byte, 65536)
		n, err := unix.Lgetxattr(filepath.Join(dir, "file"), x.Name, value)
		if err != nil || string(value[:n]) != x.Value {
			t.Errorf("%s has %d bytes, want %d (%v)", x.Name, n, len(x.Value), err)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "link")); err != nil || target != root.Children["link"].Target {
		t.Errorf("link leads to %d bytes, %v", len(target), err)
	}
	sparse, err := os.Open(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer sparse.Close()
	piece := make([]byte, 8)
	if _, err := sparse.ReadAt(piece, 512<<20); err != nil || !slices.Equal(piece, []byte("middle\x00\x00")) {
		t.Errorf("middle of the sparse file is %q, %v", piece, err)
	}
	if _, err := sparse.ReadAt(piece, 1<<20); err != nil || !slices.Equal(piece, make([]byte, 8)) {
		t.Errorf("hole of the sparse file is %q, %v", piece, err)
	}
}

func TestNamesTooLongForErofs(t *testing.T) {
	root := erofs.NewDir(0o755)
	root.Children[strings.Repeat("n", 256)] = &erofs.Inode{Mode: erofs.TypeRegular}
	out, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := erofs.Write(t.Context(), out, root, nil, [16]byte{}, nil); err == nil {
		t.Error("a name of 256 bytes was written")
	}
}
