package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"aenv/native/internal/envd/pieces"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o600))
	must(t, os.Chmod(path, mode))
}

func pack(t *testing.T, path string) *bytes.Buffer {
	t.Helper()
	var packed bytes.Buffer
	must(t, Pack(&packed, path))
	return &packed
}

func TestATreeComesBackAsItWas(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	odd := "odd \xff\n'\"$(x) " + strings.Repeat("ü", 100)
	large := strings.Repeat("0123456789abcdef", 200_000)
	write(t, filepath.Join(from, "a", odd), "odd", 0o640)
	write(t, filepath.Join(from, "run"), "#!", 0o755|fs.ModeSetuid)
	write(t, filepath.Join(from, "deep", strings.Repeat("d/", 150), "large"), large, 0o444)
	write(t, filepath.Join(from, "empty"), "", 0o600)
	must(t, os.Mkdir(filepath.Join(from, "closed"), 0o750))
	must(t, os.Symlink("../../nowhere", filepath.Join(from, "a", "link")))
	at := time.Unix(1_700_000_000, 0)
	must(t, os.Chtimes(filepath.Join(from, "run"), at, at))

	done, err := Unpack(pack(t, from), to, Owner{UID: 1234, GID: 1235})
	if err != nil || done.Files != 5 || done.Bytes != int64(len("odd")+len("#!")+len(large)) {
		t.Fatalf("%+v %v", done, err)
	}
	for name, mode := range map[string]fs.FileMode{
		"a/" + odd: 0o640, "run": 0o755 | fs.ModeSetuid, "empty": 0o600, "closed": 0o750 | fs.ModeDir,
	} {
		info, err := os.Lstat(filepath.Join(to, name))
		must(t, err)
		if info.Mode() != mode {
			t.Errorf("%q has mode %v", name, info.Mode())
		}
		if owner := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && (owner.Uid != 1234 || owner.Gid != 1235) {
			t.Errorf("%q belongs to %d:%d", name, owner.Uid, owner.Gid)
		}
	}
	if info, _ := os.Stat(filepath.Join(to, "run")); !info.ModTime().Equal(at) {
		t.Errorf("modified at %v", info.ModTime())
	}
	if got, _ := os.ReadFile(filepath.Join(to, "deep", strings.Repeat("d/", 150), "large")); string(got) != large {
		t.Errorf("%d bytes of the large file came back", len(got))
	}
	if link, _ := os.Readlink(filepath.Join(to, "a", "link")); link != "../../nowhere" {
		t.Errorf("the link leads to %q", link)
	}
}

func TestWhatIsNoFileIsNamedWithoutContent(t *testing.T) {
	from := t.TempDir()
	must(t, syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600))
	socket, err := net.Listen("unix", filepath.Join(from, "socket"))
	must(t, err)
	defer socket.Close()
	in := tar.NewReader(pack(t, from))
	kinds := map[string]byte{}
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		kinds[header.Name] = header.Typeflag
	}
	if len(kinds) != 3 || kinds["./"] != tar.TypeDir || kinds["pipe"] != tar.TypeFifo || kinds["socket"] != tar.TypeFifo {
		t.Errorf("%q", kinds)
	}
}

func TestOneFileAndOneLinkAreTheirName(t *testing.T) {
	from := t.TempDir()
	write(t, filepath.Join(from, "file"), "x", 0o644)
	must(t, os.Symlink("file", filepath.Join(from, "link")))
	for _, name := range []string{"file", "link"} {
		header, err := tar.NewReader(pack(t, filepath.Join(from, name))).Next()
		if err != nil || header.Name != name || (header.Typeflag == tar.TypeSymlink) != (name == "link") {
			t.Errorf("%s: %+v %v", name, header, err)
		}
	}
}

func TestTheKernelsFilesAreLeftOut(t *testing.T) {
	in := tar.NewReader(pack(t, "/proc/self/task"))
	if _, err := in.Next(); err != nil {
		t.Error("asked for by name they are packed:", err)
	}
}

// archiveOf makes an archive of entries that Pack would never make.
func archiveOf(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var packed bytes.Buffer
	out := tar.NewWriter(&packed)
	for _, header := range entries {
		header.Size, header.Mode = 0, 0o644
		if header.Typeflag == tar.TypeReg {
			header.Size = 3
		}
		must(t, out.WriteHeader(&header))
		if header.Size > 0 {
			_, err := out.Write([]byte("bad"))
			must(t, err)
		}
	}
	must(t, out.Close())
	return &packed
}

func TestNothingIsWrittenOutsideOfTheFolder(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
	}
	for what, entries := range map[string][]tar.Header{
		"dots":                {file("../bad")},
		"dots inside":         {file("a/../../bad")},
		"absolute":            {file("/bad")},
		"through a link":      {link("out", ".."), file("out/bad")},
		"through a far link":  {link("out", "/tmp"), file("out/aenv-bad")},
		"through a near link": {{Name: "in/", Typeflag: tar.TypeDir}, link("near", "in"), file("near/bad")},
		"a hard link":         {{Name: "hard", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}},
		"a device":            {{Name: "null", Typeflag: tar.TypeChar}},
		"no name":             {file("")},
	} {
		outer := t.TempDir()
		folder := filepath.Join(outer, "folder")
		must(t, os.Mkdir(folder, 0o755))
		_, err := Unpack(archiveOf(t, entries...), folder, Owner{})
		if err == nil || !IsRefusal(err) {
			t.Errorf("%s: %v", what, err)
		}
		_ = filepath.WalkDir(outer, func(path string, entry fs.DirEntry, _ error) error {
			if strings.HasSuffix(path, "bad") || strings.Contains(path, ".aenv-") {
				t.Errorf("%s: there is %s", what, path)
			}
			return nil
		})
	}
}

func TestAFileReplacesALinkAndNoFolder(t *testing.T) {
	folder, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	write(t, outside, "outside", 0o600)
	must(t, os.Symlink(outside, filepath.Join(folder, "link")))
	_, err := Unpack(archiveOf(t, tar.Header{Name: "link", Typeflag: tar.TypeReg}), folder, Owner{})
	must(t, err)
	if got, _ := os.ReadFile(outside); string(got) != "outside" {
		t.Errorf("the link was followed: %q", got)
	}
	if info, _ := os.Lstat(filepath.Join(folder, "link")); !info.Mode().IsRegular() {
		t.Errorf("there is a %v now", info.Mode())
	}
	must(t, os.Mkdir(filepath.Join(folder, "sub"), 0o755))
	if _, err := Unpack(archiveOf(t, tar.Header{Name: "sub", Typeflag: tar.TypeReg}), folder, Owner{}); !errors.Is(err, errFolder) {
		t.Errorf("over a folder: %v", err)
	}
	if _, err := Unpack(archiveOf(t, tar.Header{Name: "link/", Typeflag: tar.TypeDir}), folder, Owner{}); !errors.Is(err, errNoFolder) {
		t.Errorf("a folder over a file: %v", err)
	}
}

func TestACutArchiveLeavesWholeFilesOnly(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	write(t, filepath.Join(from, "a"), "whole", 0o644)
	write(t, filepath.Join(from, "b"), strings.Repeat("x", 100_000), 0o644)
	packed := pack(t, from)
	_, err := Unpack(io.LimitReader(packed, 20_000), to, Owner{})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	names, _ := os.ReadDir(to)
	if len(names) != 1 || names[0].Name() != "a" {
		t.Errorf("left: %v", names)
	}
}

// stuck is a peer that stops after some bytes, until it is released.
type stuck struct {
	from    io.Reader
	left    int
	reached chan<- struct{}
	release <-chan struct{}
}

func (s *stuck) wait(n int) {
	if s.left -= n; s.left <= 0 && s.reached != nil {
		s.reached <- struct{}{}
		s.reached = nil
		<-s.release
	}
}

func (s *stuck) Read(p []byte) (int, error) {
	n, err := s.from.Read(p[:min(len(p), 64<<10)])
	s.wait(n)
	return n, err
}

func (s *stuck) Write(p []byte) (int, error) {
	s.wait(len(p))
	return len(p), nil
}

// However many archives are under way and do not move, they hold few large buffers.
func TestArchivesThatDoNotMoveHoldLittle(t *testing.T) {
	const many, after, allowed = 40, 512 << 10, 20 << 20
	from := t.TempDir()
	write(t, filepath.Join(from, "large"), strings.Repeat("x", 4<<20), 0o644)
	packed := pack(t, from).Bytes()
	for what, carry := range map[string]func(peer *stuck) error{
		"pack":   func(peer *stuck) error { return Pack(peer, from) },
		"unpack": func(peer *stuck) error { _, err := Unpack(peer, t.TempDir(), Owner{}); return err },
	} {
		reached, release, done := make(chan struct{}), make(chan struct{}), make(chan error, many)
		before := heapBytes()
		for range many {
			go func() {
				done <- carry(&stuck{from: bytes.NewReader(packed), left: after, reached: reached, release: release})
			}()
		}
		for range many {
			<-reached
		}
		if held := heapBytes() - before; held > allowed {
			t.Errorf("%s: %d hold %d MiB", what, many, held>>20)
		}
		close(release)
		for range many {
			must(t, <-done)
		}
		if lent := pieces.Lent(); lent != 0 {
			t.Errorf("%s: %d buffers are not given back", what, lent)
		}
	}
}

func heapBytes() int64 {
	var stats runtime.MemStats
	// Twice: what pools keep goes with the second.
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func FuzzUnpack(f *testing.F) {
	for _, header := range []tar.Header{
		{Name: "a/b", Typeflag: tar.TypeReg},
		{Name: "link", Linkname: "..", Typeflag: tar.TypeSymlink},
		{Name: "../x", Typeflag: tar.TypeDir},
	} {
		var packed bytes.Buffer
		_ = tar.NewWriter(&packed).WriteHeader(&header)
		// Without what ends an archive: the shorter an input, the more can be tried.
		f.Add(packed.Bytes())
	}
	outer := f.TempDir()
	folder := filepath.Join(outer, "folder")
	f.Fuzz(func(t *testing.T, archive []byte) {
		must(t, os.Mkdir(folder, 0o755))
		_, _ = Unpack(bytes.NewReader(archive), folder, Owner{})
		if names, _ := os.ReadDir(outer); len(names) != 1 {
			t.Errorf("outside of the folder: %v", names)
		}
		must(t, os.RemoveAll(folder))
	})
}
