// Package erofs writes a tree of inodes as one EROFS file in the plainest form there is: extended inodes, every datum in
// whole 4 KiB blocks of its own, no inline data, no compression, no chunks, no device table, extended attributes inline.
// Every reader (kernel, gVisor's own, a guest's) can read it and map files from it.
//
// The file is a pure function of the tree, so that the same image gives the same bytes on every node.
package erofs

import (
	"fmt"
	"sort"
	"strings"
)

// File types as in st_mode.
const (
	TypeMask    = 0o170000
	TypeSocket  = 0o140000
	TypeSymlink = 0o120000
	TypeRegular = 0o100000
	TypeBlock   = 0o060000
	TypeDir     = 0o040000
	TypeChar    = 0o020000
	TypeFifo    = 0o010000
)

// MaxNameBytes is the longest name EROFS can hold.
const MaxNameBytes = 255

// Xattr is one extended attribute under its full name (`security.capability`).
type Xattr struct {
	Name  string
	Value string
}

// Inode is one file of any type. Names live in the directories: an inode that stands in several is hard-linked.
type Inode struct {
	// Mode holds type and permission bits, set-uid and the like included.
	Mode      uint16
	UID, GID  uint32
	MtimeSec  int64
	MtimeNsec uint32
	// Rdev is a device number in the kernel's 32-bit form (EncodeDevice).
	Rdev uint32
	// Target is a symbolic link's.
	Target string
	Xattrs []Xattr
	// Children of a directory, by name.
	Children map[string]*Inode
	// SizeBytes, Spool and Offset say where a regular file's data lies: in the Spool-th data file, at Offset.
	SizeBytes int64
	Spool     int
	Offset    int64

	nlink uint32
	nid   uint64
	block uint32
}

// NewDir makes an empty directory owned by root.
func NewDir(perm uint16) *Inode {
	return &Inode{Mode: TypeDir | perm, Children: map[string]*Inode{}}
}

// Type is the file type part of the mode.
func (n *Inode) Type() uint16 { return n.Mode & TypeMask }

// IsDir tells whether n is a directory.
func (n *Inode) IsDir() bool { return n.Type() == TypeDir }

// EncodeDevice packs a device number as the kernel stores it on disk.
func EncodeDevice(major, minor uint32) uint32 {
	return minor&0xff | major<<8 | (minor&^uint32(0xff))<<12
}

var xattrPrefixes = []struct {
	prefix string
	index  uint8
}{
	{"user.", 1},
	{"system.posix_acl_access", 2},
	{"system.posix_acl_default", 3},
	{"trusted.", 4},
	{"security.", 6},
}

// splitXattr cuts a full name into EROFS's prefix number and the rest.
func splitXattr(name string) (index uint8, rest string, ok bool) {
	for _, p := range xattrPrefixes {
		exact := strings.HasPrefix(p.prefix, "system.")
		if exact && name == p.prefix || !exact && strings.HasPrefix(name, p.prefix) && len(name) > len(p.prefix) {
			return p.index, name[len(p.prefix):], true
		}
	}
	return 0, "", false
}

// CanStoreXattr tells whether EROFS has a place for an attribute of this name: user, trusted, security and POSIX ACLs.
func CanStoreXattr(name string) bool {
	_, _, ok := splitXattr(name)
	return ok
}

// CheckXattr says why an attribute of a storable name is too long, or nil.
func CheckXattr(x Xattr) error {
	if _, rest, _ := splitXattr(x.Name); len(rest) > 255 || len(x.Value) > 65535 {
		return fmt.Errorf("extended attribute %.80q is too long: %d bytes of name, %d of value", x.Name, len(x.Name), len(x.Value))
	}
	return nil
}

// xattrBytes is the size of the inline attribute area, 0 when there is none.
func (n *Inode) xattrBytes() int64 {
	if len(n.Xattrs) == 0 {
		return 0
	}
	total := int64(xattrHeaderBytes)
	for _, x := range n.Xattrs {
		_, rest, _ := splitXattr(x.Name)
		total += alignUp(int64(4+len(rest)+len(x.Value)), 4)
	}
	return total
}

// dirent is one line of a directory.
type dirent struct {
	name  string
	inode *Inode
}

// dirents lists a directory in the order EROFS demands: plain byte order, with `.` and `..` among the names.
func (n *Inode) dirents(parent *Inode) []dirent {
	list := make([]dirent, 0, len(n.Children)+2)
	list = append(list, dirent{".", n}, dirent{"..", parent})
	for name, child := range n.Children {
		list = append(list, dirent{name, child})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].name < list[j].name })
	return list
}

func fileType(mode uint16) uint8 {
	switch mode & TypeMask {
	case TypeRegular:
		return 1
	case TypeDir:
		return 2
	case TypeChar:
		return 3
	case TypeBlock:
		return 4
	case TypeFifo:
		return 5
	case TypeSocket:
		return 6
	case TypeSymlink:
		return 7
	default:
		return 0
	}
}

func alignUp(value, to int64) int64 { return (value + to - 1) / to * to }
