package mount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/erofs"
)

// Kernels before 6.12 need this way; it works on newer ones, too, and is tested there.
func TestLoopDevice(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("this kernel has no loop devices")
	}
	// A blank in the path: mountinfo escapes it.
	dir := filepath.Join(t.TempDir(), "a b")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if _, err := erofs.Write(t.Context(), image, erofs.NewDir(0o751), nil, [16]byte{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := attachLoop(image.Name(), dir); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
		t.Skipf("loop devices cannot be used here: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	points, err := Points(filepath.Dir(dir))
	if err != nil || !points[dir] || !Is(dir) {
		t.Errorf("mounts found: %v, %v", points, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("root of the image: %v, %v", info.Mode(), err)
	}
	if busy, err := Detach(dir); busy || err != nil || Is(dir) {
		t.Errorf("unmount: busy %v, %v", busy, err)
	}
	if busy, err := Detach(dir); busy || err != nil {
		t.Errorf("unmount again: busy %v, %v", busy, err)
	}
}
