package sparse

import (
	"context"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What <linux/fiemap.h> says.
const (
	fsIocFiemap        = 0xC020660B
	fiemapFlagSync     = 0x1
	fiemapExtentLast   = 0x1
	fiemapExtentShared = 0x2000
	fiemapBatch        = 512
)

type fiemapExtent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

type fiemap struct {
	start, length               uint64
	flags, mapped, count, unset uint32
	extents                     [fiemapBatch]fiemapExtent
}

// unsharedRanges adds to list where file, of size bytes, has blocks that are no other file's.
func unsharedRanges(ctx context.Context, file *os.File, size int64, list *rangeList) error {
	var batch fiemap
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		// What has not got its place on the disk yet is given it first.
		batch.start, batch.length, batch.flags, batch.mapped, batch.count = uint64(at), uint64(size-at), fiemapFlagSync, 0, fiemapBatch
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), fsIocFiemap, uintptr(unsafe.Pointer(&batch))); errno != 0 {
			return &os.PathError{Op: "map", Path: file.Name(), Err: errno}
		}
		if batch.mapped == 0 {
			return nil
		}
		for _, extent := range batch.extents[:batch.mapped] {
			start, end := int64(extent.logical), int64(extent.logical+extent.length)
			at = end
			if extent.flags&fiemapExtentShared == 0 && start < size {
				list.add(Range{start, min(end, size) - start})
			}
			if extent.flags&fiemapExtentLast != 0 {
				return nil
			}
		}
	}
	return nil
}
