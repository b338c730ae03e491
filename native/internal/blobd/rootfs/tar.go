package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"sort"
	"strings"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/fault"
)

const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	opaqueMarker   = ".wh..wh..opq"
	xattrRecord    = "SCHILY.xattr."
)

// Entry is one file of a layer, under its path from the root without a leading slash (empty for the root itself).
type Entry struct {
	Path string
	// LinkTo is the path a hard link shares its inode with; empty for everything else.
	LinkTo string
	Inode  erofs.Inode
}

// Layer is what one layer adds and what it removes from the layers below.
type Layer struct {
	Entries []Entry
	// Whiteouts are the removed paths, Opaques the directories whose former content is gone.
	Whiteouts []string
	Opaques   []string
}

// TarOptions say how a tar is meant.
type TarOptions struct {
	// Whiteouts: `.wh.` names are removals, as in image layers. A root file system's tar has them as plain names.
	Whiteouts bool
}

// ReadTar reads a whole uncompressed tar stream, file data into the spool. A malformed tar fails with fault.Invalid;
// errors of r come back as they are.
func ReadTar(ctx context.Context, r io.Reader, spool *Spool, budget *Budget, options TarOptions) (*Layer, error) {
	layer := &Layer{}
	reader := tar.NewReader(r)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return layer, nil
		}
		if errors.Is(err, tar.ErrHeader) {
			return nil, fault.Wrap(fault.Invalid, err, "not a tar, or a damaged one (%d entries read)", len(layer.Entries))
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return nil, err
		}
		if err := layer.add(ctx, header, reader, spool, budget, options); err != nil {
			return nil, err
		}
	}
}

func (l *Layer) add(ctx context.Context, header *tar.Header, data io.Reader, spool *Spool, budget *Budget, options TarOptions) error {
	if header.Typeflag == tar.TypeXGlobalHeader || header.Typeflag == 'V' {
		return nil
	}
	name, err := cleanPath(header.Name)
	if err != nil {
		return err
	}
	if options.Whiteouts {
		marker, err := l.addWhiteout(name, budget)
		if marker || err != nil {
			return err
		}
	}
	if err := checkNames(name); err != nil {
		return err
	}
	entry := Entry{Path: name, Inode: erofs.Inode{
		Mode:      uint16(header.Mode & 0o7777),
		UID:       uint32(header.Uid),
		GID:       uint32(header.Gid),
		MtimeSec:  header.ModTime.Unix(),
		MtimeNsec: uint32(header.ModTime.Nanosecond()),
	}}
	size := int64(0)
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		size = header.Size
	}
	if err := setType(&entry, header); err != nil {
		return err
	}
	if entry.Inode.Xattrs, err = xattrsOf(header); err != nil {
		return fault.Wrap(fault.Invalid, err, "entry %q", name)
	}
	if err := budget.takeEntry(&entry); err != nil {
		return err
	}
	if err := budget.takeData(size); err != nil {
		return err
	}
	if size > 0 {
		if entry.Inode.Offset, err = spool.append(ctx, data, size); err != nil {
			return err
		}
		entry.Inode.SizeBytes = size
	}
	l.Entries = append(l.Entries, entry)
	return nil
}

// setType fills what depends on the kind of entry. Texts are copied: a part of the header would keep all of it, which
// may be a megabyte, in memory.
func setType(entry *Entry, header *tar.Header) error {
	n := &entry.Inode
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		n.Mode |= erofs.TypeRegular
	case tar.TypeDir:
		n.Mode |= erofs.TypeDir
	case tar.TypeSymlink:
		if len(header.Linkname) == 0 || len(header.Linkname) > maxPathBytes {
			return fault.New(fault.Invalid, "entry %q: a symbolic link's target has 1 to %d bytes, this has %d", entry.Path, maxPathBytes, len(header.Linkname))
		}
		n.Mode = erofs.TypeSymlink | 0o777
		n.Target = strings.Clone(header.Linkname)
	case tar.TypeLink:
		target, err := cleanPath(header.Linkname)
		if err != nil {
			return err
		}
		if target == "" {
			return fault.New(fault.Invalid, "entry %q: hard link without a target", entry.Path)
		}
		entry.LinkTo = target
	case tar.TypeChar:
		n.Mode |= erofs.TypeChar
		n.Rdev = erofs.EncodeDevice(uint32(header.Devmajor), uint32(header.Devminor))
	case tar.TypeBlock:
		n.Mode |= erofs.TypeBlock
		n.Rdev = erofs.EncodeDevice(uint32(header.Devmajor), uint32(header.Devminor))
	case tar.TypeFifo:
		n.Mode |= erofs.TypeFifo
	default:
		return fault.New(fault.Invalid, "entry %q: unknown type %q", entry.Path, header.Typeflag)
	}
	if entry.Path == "" && !n.IsDir() {
		return fault.New(fault.Invalid, "the root of a layer is not a directory")
	}
	return nil
}

// cleanPath makes a name relative to the root; a name that climbs above the root is clamped there.
func cleanPath(name string) (string, error) {
	if len(name) > maxPathBytes {
		return "", fault.New(fault.Invalid, "path %.*q… has %d bytes, at most %d are possible; shorten it in the image", maxShownBytes, name, len(name), maxPathBytes)
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

// addWhiteout notes a removal marker and tells whether name was one.
func (l *Layer) addWhiteout(name string, budget *Budget) (bool, error) {
	dir, base := path.Split(name)
	dir = strings.TrimSuffix(dir, "/")
	switch {
	case !strings.HasPrefix(base, whiteoutPrefix):
		return false, nil
	case base == opaqueMarker:
		l.Opaques = append(l.Opaques, dir)
		return true, countMarker(dir, budget)
	case strings.HasPrefix(base, whiteoutMeta):
		// Bookkeeping of the union file system the format comes from; not content.
		return true, nil
	}
	victim := strings.TrimPrefix(base, whiteoutPrefix)
	if victim == "" || victim == "." || victim == ".." {
		return true, fault.New(fault.Invalid, "whiteout %q names nothing", name)
	}
	removed := path.Join(dir, victim)
	l.Whiteouts = append(l.Whiteouts, removed)
	return true, countMarker(removed, budget)
}

func countMarker(name string, budget *Budget) error {
	if err := checkNames(name); err != nil {
		return err
	}
	return budget.takeMetadata(int64(markerCost + len(name)))
}

// xattrsOf reads the attributes from the raw records, because an empty value is one too. Attributes of other systems
// (macOS puts some on every file) have no meaning on Linux and are left out.
func xattrsOf(header *tar.Header) ([]erofs.Xattr, error) {
	var list []erofs.Xattr
	for key, value := range header.PAXRecords {
		name, found := strings.CutPrefix(key, xattrRecord)
		if !found || !erofs.CanStoreXattr(name) {
			continue
		}
		x := erofs.Xattr{Name: strings.Clone(name), Value: strings.Clone(value)}
		if err := erofs.CheckXattr(x); err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list, nil
}

// looksLikeTar tells whether a stream's first bytes carry a tar header's magic.
func looksLikeTar(head []byte) bool {
	return len(head) >= 262 && bytes.Equal(head[257:262], []byte("ustar"))
}
