package filesystem

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/protobuf/types/known/timestamppb"

	filesystempb "aenv/native/gen/filesystem"
	"aenv/native/internal/envd/users"
)

// describer makes entries. It remembers names of owners for the length of one request.
type describer struct {
	users  users.Database
	owners map[uint32]string
	groups map[uint32]string
}

func newDescriber(database users.Database) *describer {
	return &describer{users: database, owners: map[uint32]string{}, groups: map[uint32]string{}}
}

// describe tells about a path without following it, except that a link's type and mode are those of its target.
// path is shown as it is given. The error is the system's.
func (d *describer) describe(path string) (*filesystempb.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	return d.describeInfo(path, info), nil
}

func (d *describer) describeInfo(path string, info fs.FileInfo) *filesystempb.EntryInfo {
	entry := &filesystempb.EntryInfo{
		Name:         text(filepath.Base(path)),
		Path:         text(path),
		Type:         typeOf(info.Mode()),
		Mode:         uint32(info.Mode().Perm()),
		Permissions:  info.Mode().String(),
		Size:         info.Size(),
		ModifiedTime: timestamppb.New(info.ModTime()),
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		entry.Owner = d.owner(stat.Uid)
		entry.Group = d.group(stat.Gid)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		d.describeLink(path, entry)
	}
	if entry.Type == filesystempb.FileType_FILE_TYPE_FILE || entry.Type == filesystempb.FileType_FILE_TYPE_DIRECTORY {
		entry.Metadata = metadataOf(path)
	}
	return entry
}

// describeLink shows a link as what it leads to; one that leads nowhere has no type and its own path as target.
func (d *describer) describeLink(path string, entry *filesystempb.EntryInfo) {
	entry.IsSymlink = true
	target, err := filepath.EvalSymlinks(path)
	var info fs.FileInfo
	if err == nil {
		info, err = os.Stat(target)
	}
	if err != nil {
		entry.Type = filesystempb.FileType_FILE_TYPE_UNSPECIFIED
		entry.SymlinkTarget = &entry.Path
		return
	}
	shown := text(target)
	entry.SymlinkTarget = &shown
	entry.Type = typeOf(info.Mode())
	entry.Mode = uint32(info.Mode().Perm())
}

// text makes a name showable: the wire's texts are UTF-8, while names of files are any bytes.
func text(name string) string {
	return strings.ToValidUTF8(name, "\uFFFD")
}

// typeOf leaves sockets, devices and pipes without a type, as E2B's clients expect.
func typeOf(mode fs.FileMode) filesystempb.FileType {
	switch {
	case mode.IsRegular():
		return filesystempb.FileType_FILE_TYPE_FILE
	case mode.IsDir():
		return filesystempb.FileType_FILE_TYPE_DIRECTORY
	case mode&fs.ModeSymlink != 0:
		return filesystempb.FileType_FILE_TYPE_SYMLINK
	default:
		return filesystempb.FileType_FILE_TYPE_UNSPECIFIED
	}
}

func (d *describer) owner(uid uint32) string {
	if _, known := d.owners[uid]; !known {
		d.owners[uid] = text(d.users.NameOf(uid))
	}
	return d.owners[uid]
}

func (d *describer) group(gid uint32) string {
	if _, known := d.groups[gid]; !known {
		d.groups[gid] = text(d.users.GroupNameOf(gid))
	}
	return d.groups[gid]
}
