package sparse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/durable"
)

// pageBytes is the unit in which machines change their memory and disks.
const pageBytes = 4096

// Apply writes the data of layers over target and returns how much that was: where several have data, that of the last one,
// and only that. All are of one size (fault.Conflict, as when a layer lies where pages of data cannot be told from holes;
// nothing is written then). After any other error target is of no use. It is not synced.
func Apply(ctx context.Context, layers []string, target string) (bytes int64, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("apply %d layers to %s: %w", len(layers), target, full(err, target))
		}
	}()
	dst, size, err := open(target, unix.O_RDWR)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	sources, err := openLayers(layers, dst, size)
	defer func() {
		for _, source := range sources {
			err = errors.Join(err, source.Close())
		}
	}()
	if err != nil {
		return 0, err
	}
	gaps := []extent{{0, size}}
	for _, source := range slices.Backward(sources) {
		var count int64
		if gaps, count, err = fillGaps(ctx, dst, source, gaps); err != nil {
			return 0, err
		}
		bytes += count
	}
	return bytes, nil
}

// fillGaps copies the data that source has in these gaps of target, which are in order. It returns the gaps that are left, and
// how much was copied.
func fillGaps(ctx context.Context, target, source *os.File, gaps []extent) (left []extent, bytes int64, err error) {
	for _, gap := range gaps {
		at, end := gap.offset, gap.offset+gap.length
		err := eachData(source, at, end, func(found extent) error {
			if found.offset > at {
				left = append(left, extent{at, found.offset - at})
			}
			bytes += found.length
			at = found.offset + found.length
			return copyExtent(ctx, nil, target, found.offset, source, found)
		})
		if err != nil {
			return nil, 0, err
		}
		if at < end {
			left = append(left, extent{at, end - at})
		}
	}
	return left, bytes, nil
}

// openLayers opens and checks them all. Those that are open are returned with an error, too.
func openLayers(layers []string, target *os.File, size int64) (sources []*os.File, err error) {
	folders := map[string]bool{}
	for _, layer := range layers {
		source, sourceSize, err := open(layer, unix.O_RDONLY)
		if err != nil {
			return sources, err
		}
		sources = append(sources, source)
		if sourceSize != size {
			return sources, fault.New(fault.Conflict, "layer %s has %d bytes, the target %d", layer, sourceSize, size)
		}
		if same, err := sameFile(source, target); err != nil {
			return sources, err
		} else if same {
			return sources, fault.New(fault.Invalid, "layer %s is the target itself", layer)
		}
		if dir := filepath.Dir(layer); !folders[dir] {
			folders[dir] = true
			if err := checkPages(dir); err != nil {
				return sources, err
			}
		}
	}
	return sources, nil
}

func sameFile(a, b *os.File) (bool, error) {
	infoA, errA := a.Stat()
	infoB, errB := b.Stat()
	if err := errors.Join(errA, errB); err != nil {
		return false, err
	}
	return os.SameFile(infoA, infoB), nil
}

// checkPages finds out whether the file system of a folder tells one page of data from the holes around it. On one that
// does not, zeros that nobody wrote would be written over the target's data.
func checkPages(dir string) (err error) {
	const at, size = 5 * pageBytes, 64 * pageBytes
	probe, err := durable.Unnamed(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, probe.Close()) }()
	if err := probe.Truncate(size); err != nil {
		return err
	}
	if _, err := probe.WriteAt([]byte{1}, at); err != nil {
		return err
	}
	found, err := nextData(probe, 0, size)
	if err != nil {
		return err
	}
	if found != (extent{at, pageBytes}) {
		return fault.New(fault.Conflict,
			"the file system of %s counts %d bytes at %d as data after %d were written at %d; layers need one with blocks of %d bytes (ext4, XFS, btrfs)",
			dir, found.length, found.offset, 1, at, pageBytes)
	}
	return nil
}
