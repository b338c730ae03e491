package rootfs

import (
	"path"
	"strings"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/fault"
)

// maxLinkHops is where Linux gives up following symbolic links, too.
const maxLinkHops = 40

// Tree is the merged root file system.
type Tree struct {
	Root   *erofs.Inode
	budget *Budget
}

// NewTree is an empty root directory. What grows in it is taken from the budget, for each time a layer is applied anew.
func NewTree(budget *Budget) *Tree { return &Tree{Root: erofs.NewDir(0o755), budget: budget} }

// Apply puts a layer on top. What the layer removes is removed first, whatever the order of its entries: a removal
// speaks about the layers below only. spool is the number under which the layer's data will be found.
func (t *Tree) Apply(layer *Layer, spool int) error {
	for _, dir := range layer.Opaques {
		if n := t.existing(dir); n != nil {
			clear(n.Children)
		}
	}
	for _, victim := range layer.Whiteouts {
		if parent := t.existing(path.Dir(victim)); parent != nil {
			delete(parent.Children, path.Base(victim))
		}
	}
	for i := range layer.Entries {
		if err := t.put(&layer.Entries[i], spool); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) put(entry *Entry, spool int) error {
	if entry.Path == "" {
		setAttributes(t.Root, &entry.Inode)
		return nil
	}
	parent, err := t.dir(path.Dir(entry.Path), true)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "entry %q", entry.Path)
	}
	name := path.Base(entry.Path)
	if err := t.budget.takeNode(&entry.Inode); err != nil {
		return err
	}
	if entry.LinkTo != "" {
		return t.link(entry, parent, name)
	}
	if existing := parent.Children[name]; existing != nil && existing.IsDir() && entry.Inode.IsDir() {
		setAttributes(existing, &entry.Inode)
		return nil
	}
	fresh := entry.Inode
	fresh.Spool = spool
	if fresh.IsDir() {
		fresh.Children = map[string]*erofs.Inode{}
	}
	parent.Children[name] = &fresh
	return nil
}

func (t *Tree) link(entry *Entry, parent *erofs.Inode, name string) error {
	targetDir := t.existing(path.Dir(entry.LinkTo))
	if targetDir == nil || targetDir.Children[path.Base(entry.LinkTo)] == nil {
		return fault.New(fault.Invalid, "entry %q: hard link to %q, which does not exist", entry.Path, entry.LinkTo)
	}
	target := targetDir.Children[path.Base(entry.LinkTo)]
	if target.IsDir() {
		return fault.New(fault.Invalid, "entry %q: hard link to the directory %q", entry.Path, entry.LinkTo)
	}
	parent.Children[name] = target
	return nil
}

// setAttributes gives an existing directory the newer layer's attributes; its content stays.
func setAttributes(dir, from *erofs.Inode) {
	children := dir.Children
	*dir = *from
	dir.Children = children
}

// existing finds a directory, or nil.
func (t *Tree) existing(name string) *erofs.Inode {
	dir, err := t.dir(name, false)
	if err != nil {
		return nil
	}
	return dir
}

// dir walks to a directory as the kernel would inside the image: symbolic links are followed, and nothing leads above
// the root. With create, missing directories are made; otherwise a missing one gives nil.
func (t *Tree) dir(name string, create bool) (found *erofs.Inode, err error) {
	at := []*erofs.Inode{t.Root}
	rest := name
	for hops := 0; rest != ""; {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		here := at[len(at)-1]
		switch part {
		case "", ".":
			continue
		case "..":
			at = at[:max(1, len(at)-1)]
			continue
		}
		next := here.Children[part]
		if next == nil {
			if !create {
				return nil, nil
			}
			if next, err = t.implied(here, part); err != nil {
				return nil, err
			}
		}
		switch next.Type() {
		case erofs.TypeDir:
			if at = append(at, next); create && len(at) > maxDepth {
				return nil, fault.New(fault.Invalid, "%.*q… leads %d directories deep, at most %d are possible", maxShownBytes, name, len(at), maxDepth)
			}
		case erofs.TypeSymlink:
			if hops++; hops > maxLinkHops {
				return nil, fault.New(fault.Invalid, "too many symbolic links in %q", name)
			}
			if strings.HasPrefix(next.Target, "/") {
				at = at[:1]
			}
			rest = next.Target + "/" + rest
		default:
			return nil, fault.New(fault.Invalid, "%q in %q is not a directory", part, name)
		}
	}
	return at[len(at)-1], nil
}

// implied makes a directory that a path goes through without an entry of its own.
func (t *Tree) implied(parent *erofs.Inode, part string) (*erofs.Inode, error) {
	if err := checkName(part); err != nil {
		return nil, err
	}
	fresh := erofs.NewDir(0o755)
	if err := t.budget.takeNode(fresh); err != nil {
		return nil, err
	}
	if err := t.budget.takeMetadata(int64(len(part))); err != nil {
		return nil, err
	}
	// A part of the path would keep all links it came by in memory.
	parent.Children[strings.Clone(part)] = fresh
	return fresh, nil
}

// EnsureMountPoints adds the directories every sandbox needs as places to mount on, where the image has nothing of that
// name.
func (t *Tree) EnsureMountPoints() {
	for _, point := range []struct {
		name string
		perm uint16
	}{{"proc", 0o555}, {"sys", 0o555}, {"dev", 0o755}, {".aenv", 0o755}, {"tmp", 0o1777}, {"run", 0o755}, {"etc", 0o755}} {
		if t.Root.Children[point.name] == nil {
			t.Root.Children[point.name] = erofs.NewDir(point.perm)
		}
	}
}
