package service

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	blobdv1 "aenv/native/gen/aenv/blobd/v1"
	"aenv/native/internal/blobd/tartest"
)

// smallDisk mounts an empty file system of 96 MiB.
func smallDisk(t *testing.T) (root string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a small file system needs root")
	}
	root = t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=96m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	return root
}

func freeBytes(t *testing.T, root string) uint64 {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		t.Fatal(err)
	}
	return fs.Bavail * uint64(fs.Bsize)
}

// TestThePartOfTheDiskThatIsKeptStaysFree has one image whose layers are too large already, and one that is too large
// only when its EROFS file is written beside them.
func TestThePartOfTheDiskThatIsKeptStaysFree(t *testing.T) {
	const kept, step = 40 << 20, 16 << 20
	for name, size := range map[string]int{"reading": 64 << 20, "writing": 36 << 20} {
		t.Run(name, func(t *testing.T) {
			root := smallDisk(t)
			client := start(t, root, keepFree(kept))
			host := serve(t, nil)
			noise := make([]byte, size)
			if _, err := rand.Read(noise); err != nil {
				t.Fatal(err)
			}
			reference := host + "/large:1"
			push(t, reference, tartest.Image(t, tartest.Layer(t, tartest.Tar(t, tartest.File("n", string(noise))))))
			lowest := ^uint64(0)
			stream, err := client.Pull(t.Context(), connect.NewRequest(&blobdv1.PullRequest{Reference: reference, LeaseId: "l", Platform: "linux/amd64"}))
			if err != nil {
				t.Fatal(err)
			}
			phase := ""
			for stream.Receive() {
				lowest = min(lowest, freeBytes(t, root))
				phase = stream.Msg().Progress.Phase
			}
			err = stream.Err()
			if connect.CodeOf(err) != connect.CodeResourceExhausted {
				t.Fatalf("got %v after phase %q, want that the disk is full", err, phase)
			}
			for _, part := range []string{root, "40 MiB", reference} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not name %s", err, part)
				}
			}
			if inLayer := strings.Contains(err.Error(), "layer 1 of 1"); inLayer != (name == "reading") {
				t.Errorf("it ended elsewhere than while %s: %v", name, err)
			}
			if lowest < kept-step {
				t.Errorf("only %d bytes were free at some moment, %d are kept", lowest, kept)
			}
			if entries, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(entries) != 0 {
				t.Errorf("tmp holds %v, %v", entries, err)
			}
			if free := freeBytes(t, root); free < 90<<20 {
				t.Errorf("%d bytes free afterwards", free)
			}
		})
	}
}

func TestNothingBeginsOnADiskWithoutRoom(t *testing.T) {
	root := t.TempDir()
	client := start(t, root, keepFree(1<<62))
	host := serve(t, nil)
	push(t, host+"/x:1", tartest.Image(t, tartest.Layer(t, tartest.Tar(t, tartest.File("a", "1")))))
	if _, err := pull(t.Context(), client, host+"/x:1", "l"); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), root) {
		t.Errorf("got %v, want that the disk is full", err)
	}
}

func TestAnImageBeyondTheLimitsIsNamed(t *testing.T) {
	client := start(t, t.TempDir())
	host := serve(t, nil)
	bomb := tartest.File("f", "")
	bomb.Size = 65 << 30
	raw := tartest.RawTar(t, bomb)
	reference := host + "/bomb:1"
	push(t, reference, tartest.Image(t, tartest.Layer(t, tartest.Tar(t, tartest.File("a", "1"))), tartest.Layer(t, raw)))
	_, err := pull(t.Context(), client, reference, "l")
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Fatalf("got %v, want an invalid image", err)
	}
	for _, part := range []string{reference, "layer 2 of 2", "64 GiB"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}
