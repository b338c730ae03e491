// Package archive carries whole trees of files in and out of the sandbox as tar streams, without any program of the image.
package archive

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/pieces"
)

// gatherBytes is how much of names and small files is written at once. What is larger passes by, in pieces.
const gatherBytes = 32 << 10

// permissionBits are those of a mode that a copy keeps.
const permissionBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// Pack writes a tar of what lies at path: a folder as "." and what is below it, anything else as its base name. Links are
// written as links. Devices, pipes and sockets are entries without content; what vanishes meanwhile is left out, and what the
// agent is still writing. A file that
// gets shorter while it is read is an error. Of the kernel's own file systems only the mount points are written.
func Pack(to io.Writer, path string) error {
	out := bufio.NewWriterSize(to, gatherBytes)
	p := &packer{root: path, tar: tar.NewWriter(out)}
	if err := filepath.WalkDir(path, p.visit); err != nil {
		return err
	}
	return errors.Join(p.tar.Close(), out.Flush())
}

type packer struct {
	root string
	tar  *tar.Writer
	// device is the root's.
	device uint64
}

func (p *packer) visit(path string, entry fs.DirEntry, err error) error {
	if errors.Is(err, fs.ErrNotExist) && path != p.root {
		return nil
	}
	if err != nil {
		return err
	}
	if path != p.root && strings.HasPrefix(entry.Name(), filesystem.TemporaryPrefix) {
		// Not there yet.
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	info, err := entry.Info()
	if errors.Is(err, fs.ErrNotExist) && path != p.root {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		return p.file(path)
	}
	if err := p.header(path, info); err != nil {
		return err
	}
	if info.IsDir() && p.isKernels(path, info) {
		return fs.SkipDir
	}
	return nil
}

// name is how an entry is called in the archive.
func (p *packer) name(path string, isDir bool) (string, error) {
	relative, err := filepath.Rel(p.root, path)
	switch {
	case err != nil:
		return "", err
	case path == p.root && !isDir:
		return filepath.Base(path), nil
	case isDir:
		return relative + "/", nil
	default:
		return relative, nil
	}
}

func (p *packer) header(path string, info fs.FileInfo) error {
	header := &tar.Header{ModTime: info.ModTime().Truncate(1e9), Mode: int64(info.Mode().Perm()), Format: tar.FormatPAX}
	for bit, wire := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if info.Mode()&bit != 0 {
			header.Mode |= wire
		}
	}
	var err error
	switch mode := info.Mode(); {
	case mode.IsRegular():
		header.Typeflag, header.Size = tar.TypeReg, info.Size()
	case mode.IsDir():
		header.Typeflag = tar.TypeDir
	case mode&fs.ModeSymlink != 0:
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = os.Readlink(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	case mode&fs.ModeCharDevice != 0:
		header.Typeflag = tar.TypeChar
	case mode&fs.ModeDevice != 0:
		header.Typeflag = tar.TypeBlock
	default:
		header.Typeflag = tar.TypeFifo
	}
	if err != nil {
		return err
	}
	if header.Name, err = p.name(path, info.IsDir()); err != nil {
		return err
	}
	if err := p.tar.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (p *packer) file(path string) error {
	// What was a file a moment ago may be a link, or a pipe that would wait for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if path != p.root && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP)) {
			return nil
		}
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := p.header(path, info); err != nil || !info.Mode().IsRegular() {
		return err
	}
	content := &io.LimitedReader{R: file, N: info.Size()}
	if err := pieces.Copy(p.tar, content); err != nil {
		return err
	}
	if content.N > 0 {
		return fmt.Errorf("%s became shorter while it was read", path)
	}
	return nil
}

// isKernels tells whether another file system begins at the folder, one whose files are not stored anywhere.
func (p *packer) isKernels(path string, info fs.FileInfo) bool {
	status, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	device := uint64(status.Dev)
	if path == p.root {
		p.device = device
		return false
	}
	if device == p.device {
		return false
	}
	var system unix.Statfs_t
	return unix.Statfs(path, &system) == nil && filesystem.IsKernels(&system)
}
