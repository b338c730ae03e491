// Package space keeps part of a disk free, so that bringing an image in cannot take from running sandboxes and the
// server's own records the room they need to go on.
package space

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/fault"
)

const (
	// stepBytes may be written between two looks at the disk.
	stepBytes = 16 << 20

	minReserveBytes     = 1 << 30
	maxReserveBytes     = 10 << 30
	reservePartsOfTotal = 20
)

// Guard watches the file system of one folder. It is safe for concurrent use.
type Guard struct {
	// ReserveBytes tells how much of a file system of this size stays free. Set it before the first use only.
	ReserveBytes func(totalBytes uint64) uint64

	folder  string
	written atomic.Int64
}

// NewGuard keeps the default reserve on the file system of folder.
func NewGuard(folder string) *Guard { return &Guard{ReserveBytes: DefaultReserve, folder: folder} }

// DefaultReserve is 5 % of the file system, at least 1 GiB and at most 10 GiB.
func DefaultReserve(totalBytes uint64) uint64 {
	return min(max(totalBytes/reservePartsOfTotal, minReserveBytes), maxReserveBytes)
}

// Room is asked before bytes are written. It looks at the disk each 16 MiB, and fails as Check does.
func (g *Guard) Room(bytes int64) error {
	if g.written.Add(bytes) < stepBytes {
		return nil
	}
	g.written.Store(0)
	return g.check(uint64(bytes))
}

// Check looks at the disk now. It fails with fault.Exhausted when no more than the reserve is free.
func (g *Guard) Check() error { return g.check(0) }

func (g *Guard) check(wanted uint64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(g.folder, &fs); err != nil {
		return fmt.Errorf("look for free space in %s: %w", g.folder, err)
	}
	block := uint64(fs.Bsize)
	free := fs.Bavail * block
	if reserve := g.ReserveBytes(fs.Blocks * block); free < reserve+wanted {
		return fault.New(fault.Exhausted,
			"the disk of %s is full: %s are free, and %s of it are kept for running sandboxes; collect unused images, remove sandboxes and snapshots, or give the folder a larger disk",
			g.folder, readable(free), readable(reserve))
	}
	return nil
}

func readable(bytes uint64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}
