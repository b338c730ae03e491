// Package pack makes one read-only EROFS file of a directory, as a drive of tools for machines.
package pack

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"aenv/native/internal/blobd/erofs"
	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/rootfs"
	"aenv/native/internal/durable"
)

// Directory packs dir into target (mode 0444), which it replaces at once and durably. scratch is a folder for this call
// alone; the caller removes it. Everything packed belongs to root; its modes and times are kept. The same directory gives
// the same bytes. fault.NotFound and fault.Invalid tell about dir or target's folder, fault.Exhausted of a full disk.
func Directory(ctx context.Context, dir, target, scratch string) (sizeBytes int64, err error) {
	defer func() {
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = fault.Wrap(fault.NotFound, err, "pack %s into %s", dir, target)
		case err != nil:
			err = fmt.Errorf("pack %s into %s: %w", dir, target, err)
		}
	}()
	out, err := durable.Unnamed(filepath.Dir(target))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	spool, err := rootfs.NewSpool(filepath.Join(scratch, "files"), nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, spool.Close()) }()
	if sizeBytes, err = write(ctx, dir, out, spool); err != nil {
		return 0, err
	}
	if err := out.Chmod(0o444); err != nil {
		return 0, err
	}
	return sizeBytes, durable.Replace(out, target)
}

func write(ctx context.Context, dir string, out *os.File, spool *rootfs.Spool) (sizeBytes int64, err error) {
	budget := rootfs.NewBudget(rootfs.DefaultLimits)
	content := sha256.New()
	layer, err := rootfs.ReadDirectory(ctx, dir, spool, budget, content)
	if err != nil {
		return 0, err
	}
	for i := range layer.Entries {
		layer.Entries[i].Inode.UID, layer.Entries[i].Inode.GID = 0, 0
	}
	tree := rootfs.NewTree(budget)
	if err := tree.Apply(layer, 0); err != nil {
		return 0, err
	}
	sizeBytes, err = erofs.Write(ctx, out, tree.Root, []*os.File{spool.File()}, [16]byte(content.Sum(nil)), nil)
	if errors.Is(err, erofs.ErrUnfit) {
		return 0, fault.Wrap(fault.Invalid, err, "the directory does not fit into EROFS")
	}
	return sizeBytes, err
}
