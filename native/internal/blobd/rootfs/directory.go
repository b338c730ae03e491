package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/fault"
)

// namesAtOnce are read of a directory between two looks at the budget.
const namesAtOnce = 1024

// ReadDirectory reads a directory of this machine as one layer and writes a canonical description of it, data included,
// to digest. It stays on the directory's file system: what is mounted below appears as an empty directory.
func ReadDirectory(ctx context.Context, root string, spool *Spool, budget *Budget, digest hash.Hash) (*Layer, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(root, &stat); err != nil {
		return nil, pathError(root, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fault.New(fault.Invalid, "%s is not a directory", root)
	}
	d := &directoryReader{ctx: ctx, root: root, spool: spool, budget: budget, digest: digest,
		device: stat.Dev, layer: &Layer{}, links: map[uint64]string{}}
	if err := d.visit("", &stat); err != nil {
		return nil, err
	}
	return d.layer, nil
}

func pathError(path string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fault.Wrap(fault.NotFound, err, "%s", path)
	}
	return fmt.Errorf("%s: %w", path, err)
}

type directoryReader struct {
	ctx    context.Context
	root   string
	spool  *Spool
	budget *Budget
	digest hash.Hash
	device uint64
	layer  *Layer
	// links holds the first path of each inode that has several.
	links map[uint64]string
}

// visit reads one file and, of a directory, everything below. Depth is bounded by the longest path the kernel takes.
func (d *directoryReader) visit(name string, stat *unix.Stat_t) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	full := filepath.Join(d.root, name)
	entry := Entry{Path: name, Inode: erofs.Inode{
		Mode: uint16(stat.Mode), UID: stat.Uid, GID: stat.Gid,
		MtimeSec: stat.Mtim.Sec, MtimeNsec: uint32(stat.Mtim.Nsec),
	}}
	n := &entry.Inode
	if stat.Nlink > 1 && !n.IsDir() {
		entry.LinkTo = d.links[stat.Ino]
		d.links[stat.Ino] = name
		if entry.LinkTo != "" {
			fmt.Fprintf(d.digest, "link %q %q\n", name, entry.LinkTo)
			d.layer.Entries = append(d.layer.Entries, entry)
			return d.budget.takeEntry(&entry)
		}
	}
	if err := d.fill(n, full, stat); err != nil {
		return err
	}
	if err := d.budget.takeEntry(&entry); err != nil {
		return err
	}
	if err := d.budget.takeData(n.SizeBytes); err != nil {
		return err
	}
	fmt.Fprintf(d.digest, "file %q %o %d %d %d.%09d %d %d %q %q\n",
		name, n.Mode, n.UID, n.GID, n.MtimeSec, n.MtimeNsec, n.Rdev, n.SizeBytes, n.Target, n.Xattrs)
	if n.SizeBytes > 0 {
		if err := d.readData(n, full); err != nil {
			return err
		}
	}
	d.layer.Entries = append(d.layer.Entries, entry)
	if n.IsDir() && stat.Dev == d.device {
		return d.descend(name, full)
	}
	return nil
}

// fill reads what is not in stat's common part.
func (d *directoryReader) fill(n *erofs.Inode, full string, stat *unix.Stat_t) (err error) {
	switch n.Type() {
	case erofs.TypeRegular:
		n.SizeBytes = stat.Size
	case erofs.TypeSymlink:
		if n.Target, err = os.Readlink(full); err != nil {
			return err
		}
	case erofs.TypeChar, erofs.TypeBlock:
		n.Rdev = erofs.EncodeDevice(unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
	}
	n.Xattrs, err = readXattrs(full)
	return err
}

func (d *directoryReader) readData(n *erofs.Inode, full string) error {
	fd, err := unix.Open(full, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return pathError(full, err)
	}
	file := os.NewFile(uintptr(fd), full)
	defer file.Close()
	n.Offset, err = d.spool.append(d.ctx, io.TeeReader(file, d.digest), n.SizeBytes)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.New(fault.Invalid, "%s became shorter while it was read", full)
	}
	return err
}

func (d *directoryReader) descend(name, full string) error {
	waiting := d.budget.Part()
	defer waiting.GiveBack()
	children, err := readNames(full, waiting)
	if err != nil {
		return err
	}
	for _, child := range children {
		var stat unix.Stat_t
		path := filepath.Join(full, child)
		if err := unix.Lstat(path, &stat); err != nil {
			return pathError(path, err)
		}
		if err := d.visit(filepath.Join(name, child), &stat); err != nil {
			return err
		}
	}
	return nil
}

// readNames lists a directory in order, as far as the budget goes.
func readNames(full string, budget *Budget) (names []string, err error) {
	dir, err := os.Open(full)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	for {
		some, err := dir.Readdirnames(namesAtOnce)
		for _, name := range some {
			if err := budget.takeMetadata(int64(markerCost + len(name))); err != nil {
				return nil, err
			}
		}
		names = append(names, some...)
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// readXattrs lists a file's attributes, without those EROFS cannot hold (a local file system may invent any).
func readXattrs(full string) ([]erofs.Xattr, error) {
	size, err := unix.Llistxattr(full, nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && size == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, pathError(full, err)
	}
	names := make([]byte, size)
	if size, err = unix.Llistxattr(full, names); err != nil {
		return nil, pathError(full, err)
	}
	var list []erofs.Xattr
	value := make([]byte, 64<<10)
	for _, name := range bytes.Split(bytes.TrimSuffix(names[:size], []byte{0}), []byte{0}) {
		if !erofs.CanStoreXattr(string(name)) {
			continue
		}
		length, err := unix.Lgetxattr(full, string(name), value)
		if err != nil {
			return nil, pathError(full, err)
		}
		x := erofs.Xattr{Name: string(name), Value: string(value[:length])}
		if err := erofs.CheckXattr(x); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "%s", full)
		}
		list = append(list, x)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list, nil
}
