package rootfs

import (
	"archive/tar"
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/tartest"
)

// merge reads and applies layers given as tar entries.
func merge(t *testing.T, layers ...[]tar.Header) (*Tree, error) {
	t.Helper()
	tree := NewTree(NewBudget(DefaultLimits))
	for i, entries := range layers {
		layer, err := readTar(t, tartest.Tar(t, entries...))
		if err != nil {
			return nil, err
		}
		if err := tree.Apply(layer, i); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

func readTar(t *testing.T, raw []byte) (*Layer, error) {
	t.Helper()
	spool, err := NewSpool(filepath.Join(t.TempDir(), "spool"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	return ReadTar(t.Context(), bytes.NewReader(raw), spool, NewBudget(DefaultLimits), TarOptions{Whiteouts: true})
}

// list names everything in the tree, directories with a slash at the end.
func list(tree *Tree) string {
	var names []string
	var walk func(prefix string, n *erofs.Inode)
	walk = func(prefix string, n *erofs.Inode) {
		for name, child := range n.Children {
			if child.IsDir() {
				names = append(names, prefix+name+"/")
				walk(prefix+name+"/", child)
			} else {
				names = append(names, prefix+name)
			}
		}
	}
	walk("", tree.Root)
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestLayersMergeAsUnionFileSystemsDo(t *testing.T) {
	type entries = []tar.Header
	cases := map[string]struct {
		layers []entries
		want   string
	}{
		"whiteout of a file": {
			[]entries{{tartest.File("a/x", "1"), tartest.File("a/y", "2")}, {tartest.Whiteout("a/.wh.x")}}, "a/ a/y"},
		"whiteout of a directory and the same directory new": {
			[]entries{{tartest.File("d/old", "1")}, {tartest.File("d/new", "2"), tartest.Whiteout(".wh.d")}}, "d/ d/new"},
		"opaque marker after the directory's new content": {
			[]entries{{tartest.File("d/old", "1"), tartest.Dir("d/sub", 0o755)}, {tartest.File("d/new", "2"), tartest.Whiteout("d/.wh..wh..opq")}}, "d/ d/new"},
		"opaque root": {
			[]entries{{tartest.File("a", "1")}, {tartest.Whiteout(".wh..wh..opq"), tartest.File("b", "2")}}, "b"},
		"whiteout of what never was": {
			[]entries{{tartest.File("a", "1")}, {tartest.Whiteout("no/where/.wh.x"), tartest.Whiteout(".wh.y")}}, "a"},
		"whiteout behind a link to a directory": {
			[]entries{{tartest.File("real/f", "1"), tartest.Symlink("l", "real")}, {tartest.Whiteout("l/.wh.f")}}, "l real/"},
		"bookkeeping markers are no content": {
			[]entries{{tartest.File("a", "1"), tartest.Whiteout(".wh..wh.plnk"), tartest.Whiteout(".wh..wh.aufs")}}, "a"},
		"directory over file, file over directory": {
			[]entries{{tartest.File("a", "1"), tartest.File("b/c", "2")}, {tartest.Dir("a", 0o755), tartest.File("b", "3")}}, "a/ b"},
		"new file by way of a link": {
			[]entries{{tartest.Dir("usr/lib", 0o755), tartest.Symlink("lib", "usr/lib")}, {tartest.File("lib/new", "1")}}, "lib usr/ usr/lib/ usr/lib/new"},
		"directory replaces a link": {
			[]entries{{tartest.Dir("usr/lib", 0o755), tartest.Symlink("lib", "usr/lib")}, {tartest.Dir("lib", 0o755), tartest.File("lib/new", "1")}}, "lib/ lib/new usr/ usr/lib/"},
		"names and links above the root are clamped": {
			[]entries{{tartest.File("../../etc/x", "1"), tartest.Symlink("up", "../../../etc")}, {tartest.File("up/y", "2")}}, "etc/ etc/x etc/y up"},
		"hard link outlives its target": {
			[]entries{{tartest.File("a", "1"), tartest.Link("b", "a")}, {tartest.Whiteout(".wh.a")}}, "b"},
		"union over many layers": {
			[]entries{{tartest.File("o/x/1", "1")}, {}, {tartest.File("o/x/3", "3")}, {tartest.Dir("o/x", 0o700)}}, "o/ o/x/ o/x/1 o/x/3"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			tree, err := merge(t, c.layers...)
			if err != nil {
				t.Fatal(err)
			}
			if got := list(tree); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestHardLinksShareUntilReplaced(t *testing.T) {
	tree, err := merge(t, []tar.Header{tartest.File("a", "1"), tartest.Link("b", "a"), tartest.Link("c", "/a")}, []tar.Header{tartest.File("a", "2")})
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := tree.Root.Children["a"], tree.Root.Children["b"], tree.Root.Children["c"]
	if b != c || a == b {
		t.Errorf("b and c must share, a must not: %p %p %p", a, b, c)
	}
	if a.Spool != 1 || b.Spool != 0 {
		t.Errorf("data of spools %d and %d, want 1 and 0", a.Spool, b.Spool)
	}
}

func TestBadLayersAreRefused(t *testing.T) {
	cases := map[string][]tar.Header{
		"hard link to nothing":       {tartest.Link("a", "b")},
		"hard link to a directory":   {tartest.Dir("d", 0o755), tartest.Link("a", "d")},
		"file below a file":          {tartest.File("a", "1"), tartest.File("a/b", "2")},
		"links in a circle":          {tartest.Symlink("a", "b"), tartest.Symlink("b", "a"), tartest.File("a/x", "1")},
		"whiteout of the parent":     {tartest.Whiteout("d/.wh...")},
		"path longer than any":       {tartest.File(strings.Repeat("x/", 3000)+"y", "1")},
		"root that is no directory":  {tartest.File(".", "")},
		"symbolic link to nothing":   {tartest.Symlink("a", "")},
		"attribute name of 300 byte": {withXattr(tartest.File("a", ""), "user."+strings.Repeat("n", 300), "v")},
	}
	for name, entries := range cases {
		t.Run(name, func(t *testing.T) {
			if tree, err := merge(t, entries); fault.KindOf(err) != fault.Invalid {
				t.Errorf("got %v, tree %v; want fault.Invalid", err, tree)
			}
		})
	}
}

func withXattr(h tar.Header, name, value string) tar.Header {
	if h.PAXRecords == nil {
		h.PAXRecords = map[string]string{}
	}
	h.PAXRecords["SCHILY.xattr."+name] = value
	return h
}

func TestMountPointsAreAddedNotReplaced(t *testing.T) {
	tree, err := merge(t, []tar.Header{tartest.Symlink("tmp", "var/tmp"), tartest.Dir("etc", 0o700)})
	if err != nil {
		t.Fatal(err)
	}
	tree.EnsureMountPoints()
	if got, want := list(tree), ".aenv/ dev/ etc/ proc/ run/ sys/ tmp"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if mode := tree.Root.Children["etc"].Mode & 0o7777; mode != 0o700 {
		t.Errorf("etc has mode %o, want the image's 700", mode)
	}
}

func TestTruncatedTarIsNotALayer(t *testing.T) {
	raw := tartest.Tar(t, tartest.File("a", strings.Repeat("x", 5000)))
	if _, err := readTar(t, raw[:2000]); err == nil {
		t.Error("a tar cut in the middle of a file was accepted")
	}
	if _, err := readTar(t, []byte(strings.Repeat("this is no tar ", 100))); fault.KindOf(err) != fault.Invalid {
		t.Errorf("got %v, want fault.Invalid", err)
	}
}

func TestFailedSpoolIsLocal(t *testing.T) {
	var local *localError
	spool, err := NewSpool(filepath.Join(t.TempDir(), "spool"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := spool.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = ReadTar(t.Context(), bytes.NewReader(tartest.Tar(t, tartest.File("a", "data"))), spool, NewBudget(DefaultLimits), TarOptions{})
	if !errors.As(err, &local) || !IsLocal(err) {
		t.Errorf("a failed write to the spool is not told from a bad stream: %v", err)
	}
}
