package service

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	blobdv1 "aenv/native/gen/aenv/blobd/v1"
	"aenv/native/gen/aenv/blobd/v1/blobdv1connect"
)

func copyFile(t *testing.T, client blobdv1connect.BlobdClient, source, target string) (*blobdv1.CopyFileResponse, error) {
	response, err := client.CopyFile(t.Context(), connect.NewRequest(&blobdv1.CopyFileRequest{Source: source, Target: target}))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

func applyLayers(t *testing.T, client blobdv1connect.BlobdClient, target string, layers ...string) (uint64, error) {
	response, err := client.ApplyLayers(t.Context(), connect.NewRequest(&blobdv1.ApplyLayersRequest{Layers: layers, Target: target}))
	if err != nil {
		return 0, err
	}
	return response.Msg.Bytes, nil
}

func dataRanges(t *testing.T, client blobdv1connect.BlobdClient, path string) (*blobdv1.DataRangesResponse, error) {
	response, err := client.DataRanges(t.Context(), connect.NewRequest(&blobdv1.DataRangesRequest{Path: path}))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}

func TestSyncSaysWhichPathIsWrong(t *testing.T) {
	client, dir := start(t, t.TempDir()), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	sync := func(path string) (*connect.Response[blobdv1.SyncResponse], error) {
		return client.Sync(t.Context(), connect.NewRequest(&blobdv1.SyncRequest{Paths: []string{path}}))
	}
	if done, err := sync(dir); err != nil || done.Msg.Bytes != 1000 {
		t.Errorf("%v, %v", done, err)
	}
	for path, want := range map[string]connect.Code{
		"a":                          connect.CodeInvalidArgument,
		filepath.Join(dir, "no-one"): connect.CodeNotFound,
	} {
		if _, err := sync(path); connect.CodeOf(err) != want || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestACopyHasTheSameSizeDataAndHoles(t *testing.T) {
	onDisks(t, func(t *testing.T, client blobdv1connect.BlobdClient, d disk) {
		// 32 MiB of data in one piece, single pages, and an end that is no whole page.
		const size = 128<<20 + 100
		data := run(1024, 8192, 7)
		maps.Copy(data, pages{3: 1, 20000: 2, 128 << 8: 9})
		const dataBytes = (8192+2)*page + 100
		source, target := sparseFile(t, filepath.Join(d.dir, "a"), size, data), filepath.Join(d.dir, "b")
		before := settledFree(t, d.dir)
		copied, err := copyFile(t, client, source, target)
		if err != nil {
			t.Fatal(err)
		}
		if d.known && copied.Shared != d.shares {
			t.Errorf("shared: %v, want %v", copied.Shared, d.shares)
		}
		if want := map[bool]uint64{true: 0, false: dataBytes}[copied.Shared]; copied.CopiedBytes != want {
			t.Errorf("%d bytes copied, want %d", copied.CopiedBytes, want)
		}
		if used := before - settledFree(t, d.dir); copied.Shared && used > 1<<20 {
			t.Errorf("the shared copy took %d bytes", used)
		}
		if stat := statOf(t, target); stat.Blocks*512 > dataBytes+1<<20 || stat.Mode&0o7777 != 0o600 {
			t.Errorf("the copy has %d bytes on disk, mode %o", stat.Blocks*512, stat.Mode)
		}
		// What is written to one is not seen in the other.
		file, err := os.OpenFile(target, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteAt(make([]byte, page), 1024*page); err != nil {
			t.Fatal(err)
		}
		checkPages(t, source, size, data)
		data[1024] = 0
		checkPages(t, target, size, data)
	})
}

func TestACopyThatFailsLeavesNothing(t *testing.T) {
	dir := smallDisk(t)
	client := start(t, filepath.Join(dir, "blobs"))
	big := sparseFile(t, filepath.Join(dir, "big"), 64<<20, run(0, 60<<8, 1))
	free := freeBytes(t, dir)
	_, err := copyFile(t, client, big, filepath.Join(dir, "copy"))
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), dir) {
		t.Errorf("a copy larger than the disk: %v", err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"big"}) || freeBytes(t, dir) != free {
		t.Errorf("left behind: %v, %d bytes", got, free-freeBytes(t, dir))
	}
	target := sparseFile(t, filepath.Join(dir, "target"), 64<<20, nil)
	if _, err := applyLayers(t, client, target, big); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a layer larger than the disk: %v", err)
	}
}

func TestBadPathsAndFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	client := start(t, filepath.Join(dir, "blobs"))
	in := func(name string) string { return filepath.Join(dir, name) }
	sparseFile(t, in("a"), 8*page, pages{1: 1})
	sparseFile(t, in("b"), 8*page, pages{1: 2})
	sparseFile(t, in("short"), 7*page, nil)
	if err := os.Symlink("a", in("link")); err != nil {
		t.Fatal(err)
	}
	// Opened carelessly, this one would wait for a writer.
	if err := unix.Mkfifo(in("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := names(t, dir)
	for _, c := range []struct {
		what string
		call func() error
		want connect.Code
	}{
		{"copy from nothing", func() error { _, err := copyFile(t, client, in("none"), in("x")); return err }, connect.CodeNotFound},
		{"copy into no folder", func() error { _, err := copyFile(t, client, in("a"), in("none/x")); return err }, connect.CodeNotFound},
		{"copy over a file", func() error { _, err := copyFile(t, client, in("a"), in("b")); return err }, connect.CodeFailedPrecondition},
		{"copy over a link", func() error { _, err := copyFile(t, client, in("a"), in("link")); return err }, connect.CodeFailedPrecondition},
		{"copy by a link", func() error { _, err := copyFile(t, client, in("link"), in("x")); return err }, connect.CodeInvalidArgument},
		{"copy a folder", func() error { _, err := copyFile(t, client, dir, in("x")); return err }, connect.CodeInvalidArgument},
		{"copy a pipe", func() error { _, err := copyFile(t, client, in("pipe"), in("x")); return err }, connect.CodeInvalidArgument},
		{"copy below a file", func() error { _, err := copyFile(t, client, in("a"), in("b/x")); return err }, connect.CodeInvalidArgument},
		{"relative path", func() error { _, err := copyFile(t, client, "a", in("x")); return err }, connect.CodeInvalidArgument},
		{"path with dots", func() error { _, err := copyFile(t, client, in("a"), dir+"/../x"); return err }, connect.CodeInvalidArgument},
		{"layer of another size", func() error { _, err := applyLayers(t, client, in("a"), in("b"), in("short")); return err }, connect.CodeFailedPrecondition},
		{"layer that is missing", func() error { _, err := applyLayers(t, client, in("a"), in("b"), in("none")); return err }, connect.CodeNotFound},
		{"layer over itself", func() error { _, err := applyLayers(t, client, in("a"), in("b"), in("a")); return err }, connect.CodeInvalidArgument},
		{"layers over nothing", func() error { _, err := applyLayers(t, client, in("none"), in("a")); return err }, connect.CodeNotFound},
		{"too many layers", func() error {
			_, err := applyLayers(t, client, in("a"), slices.Repeat([]string{in("b")}, maxLayers+1)...)
			return err
		}, connect.CodeInvalidArgument},
		{"ranges of nothing", func() error { _, err := dataRanges(t, client, in("none")); return err }, connect.CodeNotFound},
		{"ranges of a pipe", func() error { _, err := dataRanges(t, client, in("pipe")); return err }, connect.CodeInvalidArgument},
		{"pack nothing", func() error { _, err := packDirectory(t, client, in("none"), in("x")); return err }, connect.CodeNotFound},
		{"pack a file", func() error { _, err := packDirectory(t, client, in("a"), in("x")); return err }, connect.CodeInvalidArgument},
		{"pack into no folder", func() error { _, err := packDirectory(t, client, dir, in("none/x")); return err }, connect.CodeNotFound},
	} {
		if err := c.call(); connect.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
	if after := names(t, dir); !slices.Equal(before, after) {
		t.Errorf("there was %v, now %v", before, after)
	}
	checkPages(t, in("a"), 8*page, pages{1: 1})
}

func TestRangesAreExactToThePage(t *testing.T) {
	onDisks(t, func(t *testing.T, client blobdv1connect.BlobdClient, d disk) {
		const size = 1<<30 + 5
		data := run(7, 300, 1)
		data[0], data[1<<18] = 1, 1
		// Every other page, which no file system joins.
		for number := int64(400); number < 600; number += 2 {
			data[number] = 1
		}
		original, changed := filepath.Join(d.dir, "original"), filepath.Join(d.dir, "changed")
		sparseFile(t, original, size, data)
		checkRanges(t, client, original, size, data)
		settledFree(t, d.dir)
		checkRanges(t, client, original, size, data)

		// Blocks that are shared are written elsewhere, perhaps with room around them: that is no data.
		if _, err := copyFile(t, client, original, changed); err != nil {
			t.Fatal(err)
		}
		checkRanges(t, client, changed, size, data)
		file, err := os.OpenFile(changed, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for _, number := range []int64{306, 307, 309, 500, 9000} {
			data[number] = 2
			if _, err := file.WriteAt(make([]byte, page), number*page); err != nil {
				t.Fatal(err)
			}
		}
		checkRanges(t, client, changed, size, data)
		settledFree(t, d.dir)
		checkRanges(t, client, changed, size, data)

		checkRanges(t, client, sparseFile(t, filepath.Join(d.dir, "empty"), 0, nil), 0, nil)
	})
}

// checkRanges compares what the service says about a file with the pages that were written to it.
func checkRanges(t *testing.T, client blobdv1connect.BlobdClient, path string, size uint64, written pages) {
	t.Helper()
	var want, got []string
	for _, number := range slices.Sorted(maps.Keys(written)) {
		if _, goesOn := written[number-1]; goesOn {
			continue
		}
		end := number
		for _, goesOn := written[end]; goesOn; _, goesOn = written[end] {
			end++
		}
		want = append(want, fmt.Sprint(number*page, "-", min(uint64(end*page), size)))
	}
	found, err := dataRanges(t, client, path)
	if err != nil {
		t.Fatal(err)
	}
	for r := range slices.Chunk(found.Ranges, rangeBytes) {
		offset, length := binary.LittleEndian.Uint64(r), binary.LittleEndian.Uint64(r[8:])
		got = append(got, fmt.Sprint(offset, "-", offset+length))
	}
	if !slices.Equal(got, want) || found.SizeBytes != size || found.Coalesced {
		t.Errorf("%d bytes, coalesced: %v, ranges %v\nwant %d bytes, ranges %v", found.SizeBytes, found.Coalesced, got, size, want)
	}
}

func TestOfACopyThatSharesItsBlocksWhatIsWrittenSinceIsTold(t *testing.T) {
	dir := xfsDisk(t)
	client := start(t, filepath.Join(dir, "blobs"))
	const size = 64 << 20
	source, target := sparseFile(t, filepath.Join(dir, "a"), size, run(0, 1024, 7)), filepath.Join(dir, "b")
	copied, err := copyFile(t, client, source, target)
	if err != nil || !copied.Shared {
		t.Fatalf("shared: %v, %v", copied.Shared, err)
	}
	written := []int64{0, 5, 6, 1023, 2000, 16383}
	file, err := os.OpenFile(target, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, number := range written {
		if _, err := file.WriteAt(bytes.Repeat([]byte{9}, page), number*page); err != nil {
			t.Fatal(err)
		}
	}
	// Many small ones, beyond what one look at the file's map holds.
	for number := int64(4000); number < 8000; number += 4 {
		written = append(written, number)
		if _, err := file.WriteAt(bytes.Repeat([]byte{9}, page), number*page); err != nil {
			t.Fatal(err)
		}
	}
	response, err := client.DataRanges(t.Context(), connect.NewRequest(&blobdv1.DataRangesRequest{Path: target, UnsharedOnly: true}))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(written)
	var found []int64
	for r := response.Msg.Ranges; len(r) > 0; r = r[16:] {
		at, length := int64(binary.LittleEndian.Uint64(r)), int64(binary.LittleEndian.Uint64(r[8:]))
		for number := at / page; number < (at+length)/page; number++ {
			found = append(found, number)
		}
	}
	if !slices.Equal(found, written) {
		t.Errorf("%d pages are told, %d were written", len(found), len(written))
	}
}

func TestWhatIsSealedNobodyCanChange(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: files become root's as root only")
	}
	onDisks(t, func(t *testing.T, client blobdv1connect.BlobdClient, d disk) {
		path := sparseFile(t, filepath.Join(d.dir, "f"), 8*page, pages{1: 1})
		seal := func(size uint64) error {
			_, err := client.SealFiles(t.Context(), connect.NewRequest(&blobdv1.SealFilesRequest{Files: []*blobdv1.SealedFile{{Path: path, SizeBytes: &size}}}))
			return err
		}
		if err := seal(7 * page); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "32768 bytes") {
			t.Errorf("another size: %v", err)
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		if err := seal(8 * page); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "open for writing") {
			t.Errorf("somebody has it open: %v", err)
		}
		mapped, err := unix.Mmap(int(file.Fd()), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err = errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		if err := seal(8 * page); connect.CodeOf(err) != connect.CodeFailedPrecondition {
			t.Errorf("somebody has it mapped: %v", err)
		}
		if err := unix.Munmap(mapped); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := seal(8 * page); err != nil {
				t.Fatal(err)
			}
		}
		if stat := statOf(t, path); stat.Uid != 0 || stat.Gid != 0 || stat.Mode&0o7777 != 0o444 {
			t.Errorf("it is %d's, mode %o", stat.Uid, stat.Mode)
		}
	})
}

func TestLayersAreAppliedInOrder(t *testing.T) {
	onDisks(t, func(t *testing.T, client blobdv1connect.BlobdClient, d disk) {
		const size = 16 << 20
		in := func(name string) string { return filepath.Join(d.dir, name) }
		target := sparseFile(t, in("target"), size, run(0, 2048, 1))
		first := sparseFile(t, in("first"), size, run(512, 1024, 2))
		// The last layer has zeros as data: they count. Where both have data only the last one's is written.
		second := sparseFile(t, in("second"), size, pages{100: 3, 600: 3, 3000: 3, 101: 0})
		before := settledFree(t, d.dir)
		want := run(0, 2048, 1)
		maps.Copy(want, run(512, 1024, 2))
		maps.Copy(want, pages{100: 3, 600: 3, 3000: 3, 101: 0})
		for range 2 {
			applied, err := applyLayers(t, client, target, first, second)
			if err != nil || applied != (1024+3)*page {
				t.Fatalf("%d bytes, %v", applied, err)
			}
			checkPages(t, target, size, want)
		}
		if freed := settledFree(t, d.dir) - before; d.shares && freed < 3<<20 {
			t.Errorf("4 MiB that the layer and the target share gave %d bytes free", freed)
		}
		if applied, err := applyLayers(t, client, target); err != nil || applied != 0 {
			t.Errorf("no layers: %d bytes, %v", applied, err)
		}
	})
}

func TestManyCopiesAtOnce(t *testing.T) {
	onDisks(t, func(t *testing.T, client blobdv1connect.BlobdClient, d disk) {
		const size = 64 << 20
		data := run(5000, 256, 4)
		source := sparseFile(t, filepath.Join(d.dir, "source"), size, data)
		var made atomic.Int32
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				own := filepath.Join(d.dir, fmt.Sprint("own-", i))
				if _, err := copyFile(t, client, source, own); err != nil {
					t.Error(err)
				}
				if _, err := applyLayers(t, client, own, source); err != nil {
					t.Error(err)
				}
				// One name for all: one of them gets it.
				switch _, err := copyFile(t, client, source, filepath.Join(d.dir, "shared")); {
				case err == nil:
					made.Add(1)
				case connect.CodeOf(err) != connect.CodeFailedPrecondition:
					t.Error(err)
				}
			})
		}
		group.Wait()
		if made.Load() != 1 || len(names(t, d.dir)) != 10 {
			t.Errorf("%d copies got one name; there is %v", made.Load(), names(t, d.dir))
		}
		for i := range 8 {
			checkPages(t, filepath.Join(d.dir, fmt.Sprint("own-", i)), size, data)
		}
		checkPages(t, filepath.Join(d.dir, "shared"), size, data)
	})
}
