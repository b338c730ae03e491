package service

import (
	"bytes"
	"crypto/rand"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	blobdv1 "aenv/native/gen/aenv/blobd/v1"
	"aenv/native/gen/aenv/blobd/v1/blobdv1connect"
	"aenv/native/internal/blobd/mount"
)

func packDirectory(t *testing.T, client blobdv1connect.BlobdClient, dir, target string) (uint64, error) {
	response, err := client.PackDirectory(t.Context(), connect.NewRequest(&blobdv1.PackDirectoryRequest{Dir: dir, Target: target}))
	if err != nil {
		return 0, err
	}
	return response.Msg.SizeBytes, nil
}

func TestAPackedDirectoryIsADriveOfRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	client := start(t, filepath.Join(root, "blobs"))
	dir, target, at := filepath.Join(root, "tools"), filepath.Join(root, "tools.erofs"), t.TempDir()
	program := make([]byte, 10000)
	if _, err := rand.Read(program); err != nil {
		t.Fatal(err)
	}
	writeTools(t, dir, program)
	size, err := packDirectory(t, client, dir, target)
	if err != nil {
		t.Fatal(err)
	}
	if stat := statOf(t, target); uint64(stat.Size) != size || stat.Mode&0o7777 != 0o444 || size%page != 0 {
		t.Errorf("size %d (said: %d), mode %o", stat.Size, size, stat.Mode)
	}
	first, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	// Again, by several at once, over the file that is there: the same bytes.
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if _, err := packDirectory(t, client, dir, target); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if second, err := os.ReadFile(target); err != nil || !bytes.Equal(first, second) {
		t.Errorf("packed again it is another file, %v", err)
	}
	if got := names(t, root); !slices.Equal(got, []string{"tools", "tools.erofs"}) {
		t.Errorf("beside it: %v", got)
	}

	if err := mount.Attach(target, at); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := mount.Detach(at); err != nil {
			t.Error(err)
		}
	}()
	var found []string
	if err := filepath.WalkDir(at, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(at, path)
		found = append(found, name)
		var stat syscall.Stat_t
		if err := syscall.Lstat(path, &stat); err != nil || stat.Uid != 0 || stat.Gid != 0 {
			t.Errorf("%s belongs to %d:%d, %v", name, stat.Uid, stat.Gid, err)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{".", "bin", "bin/envd", "bin/link"}; !slices.Equal(found, want) {
		t.Errorf("it holds %v, want %v", found, want)
	}
	if content, err := os.ReadFile(filepath.Join(at, "bin/link")); err != nil || !bytes.Equal(content, program) {
		t.Errorf("the program has %d bytes, %v", len(content), err)
	}
	if stat := statOf(t, filepath.Join(at, "bin/envd")); stat.Mode&0o7777 != 0o755 {
		t.Errorf("the program has mode %o", stat.Mode)
	}
}

// writeTools makes a folder with a program in it that belongs to somebody.
func writeTools(t *testing.T, dir string, program []byte) {
	t.Helper()
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	envd := filepath.Join(bin, "envd")
	if err := os.WriteFile(envd, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("envd", filepath.Join(bin, "link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{bin, envd} {
		if err := os.Chown(path, 1000, 1001); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPackingOntoAFullDiskLeavesNothing(t *testing.T) {
	root := smallDisk(t)
	client := start(t, t.TempDir())
	dir := filepath.Join(root, "tools")
	program := make([]byte, 60<<20)
	if _, err := rand.Read(program); err != nil {
		t.Fatal(err)
	}
	writeTools(t, dir, program)
	free := freeBytes(t, root)
	if _, err := packDirectory(t, client, dir, filepath.Join(root, "tools.erofs")); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("got %v, want that the disk is full", err)
	}
	if got := names(t, root); !slices.Equal(got, []string{"tools"}) || freeBytes(t, root) != free {
		t.Errorf("left behind: %v, %d bytes", got, free-freeBytes(t, root))
	}
}

// TestAnImageFileIsReadByALink has a process of another user read an image it cannot reach, and after its collection.
func TestAnImageFileIsReadByALink(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	// Go makes the folder of a test's temporary folders for its owner alone.
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	client := start(t, filepath.Join(root, "blobs"))
	dir := filepath.Join(root, "fs")
	writeTools(t, dir, []byte("program"))
	stream, err := client.Import(t.Context(), connect.NewRequest(&blobdv1.ImportRequest{Path: dir, LeaseId: "l", Format: blobdv1.ImportRequest_FORMAT_DIRECTORY}))
	done, err := last(stream, err)
	if err != nil {
		t.Fatal(err)
	}
	digest := done.Image.Digest
	mountImage := func() string {
		t.Helper()
		mounted, err := client.Mount(t.Context(), connect.NewRequest(&blobdv1.MountRequest{Digest: digest, LeaseId: "l"}))
		if err != nil {
			t.Fatal(err)
		}
		if stat := statOf(t, mounted.Msg.ImagePath); stat.Mode&0o7777 != 0o444 || uint64(stat.Size) != done.Image.SizeBytes {
			t.Errorf("the image's file has mode %o, %d bytes", stat.Mode, stat.Size)
		}
		if _, err := os.Stat(filepath.Join(mounted.Msg.Path, "bin/envd")); err != nil {
			t.Error(err)
		}
		return mounted.Msg.ImagePath
	}
	// As an earlier version left it, whether mounted or not.
	image := mountImage()
	if err := os.Chmod(image, 0o600); err != nil {
		t.Fatal(err)
	}
	mountImage()

	jail := filepath.Join(root, "rootfs.erofs")
	if err := os.Link(image, jail); err != nil {
		t.Fatal(err)
	}
	asNobody := func(path string) error {
		read := exec.Command("cat", path)
		read.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return read.Run()
	}
	if err := asNobody(image); err == nil {
		t.Error("another user reaches the image's folder")
	}
	if err := asNobody(jail); err != nil {
		t.Errorf("another user cannot read the link: %v", err)
	}
	releaseAll(t, client)
	collected, err := client.Collect(t.Context(), connect.NewRequest(&blobdv1.CollectRequest{}))
	if err != nil || !slices.Equal(collected.Msg.Digests, []string{digest}) || collected.Msg.Bytes != 0 {
		t.Errorf("collected %v, %v; want the image, and no bytes while there is a link", collected, err)
	}
	if err := asNobody(jail); err != nil {
		t.Errorf("the link went with the image: %v", err)
	}
	if stat := statOf(t, jail); stat.Nlink != 1 || uint64(stat.Size) != done.Image.SizeBytes {
		t.Errorf("after the collection: %d links, %d bytes", stat.Nlink, stat.Size)
	}
}
