package filesystem

import (
	"os"
	"slices"
	"testing"

	"connectrpc.com/connect"
)

// A folder that is moved into itself is refused, by whatever way it is reached, and the refusal makes nothing.
func TestMoveIntoItself(t *testing.T) {
	b := newBench(t)
	b.mount("tmpfs", b.path("src/mounted"))
	b.must(os.WriteFile(b.path("src/file"), nil, 0o644))
	b.must(os.Symlink("src", b.path("link")))
	b.must(os.Symlink("src/mounted", b.path("far")))
	for _, destination := range []string{"src/new/dst", "link/new/dst", "src/mounted/dst", "far/new/dst"} {
		if err := b.move(b.path("src"), b.path(destination)); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("to %s: %v", destination, err)
		}
	}
	names, err := b.list(b.dir, 9)
	b.must(err)
	if !slices.Equal(names, []string{"far", "link", "src", "src/file", "src/mounted"}) {
		t.Errorf("refused moves left %v", names)
	}
	// A link is not what it leads to.
	b.must(b.move(b.path("link"), b.path("src/mounted/link")))
	b.must(b.move(b.path("src/file"), b.path("src/mounted/new/file")))
}

// What cannot be removed is not copied either.
func TestMoveOfTheKernelsFiles(t *testing.T) {
	b := newBench(t)
	if err := b.move("/proc/self/task", b.path("moved")); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Error(err)
	}
	if left, err := os.ReadDir(b.dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
