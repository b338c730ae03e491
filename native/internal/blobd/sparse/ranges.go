package sparse

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Range is a part of a file that has data.
type Range struct{ Offset, Length int64 }

// Map is where a file has data.
type Map struct {
	SizeBytes int64
	// Ranges in order, with a hole between any two.
	Ranges []Range
	// Coalesced: there were too many; some ranges hold small holes.
	Coalesced bool
}

// DataRanges maps a file, in at most limit (1 or more) ranges: beyond that, neighbours become one, smallest holes first.
func DataRanges(ctx context.Context, path string, limit int) (Map, error) {
	return ranges(ctx, path, limit, dataRanges)
}

// UnsharedRanges maps what of a file no other has in common with it: of one that was a copy by shared blocks, what has been
// written since. Likewise in at most limit ranges.
func UnsharedRanges(ctx context.Context, path string, limit int) (Map, error) {
	return ranges(ctx, path, limit, unsharedRanges)
}

type mapper func(ctx context.Context, file *os.File, size int64, list *rangeList) error

func ranges(ctx context.Context, path string, limit int, add mapper) (Map, error) {
	file, size, err := open(path, unix.O_RDONLY)
	if err != nil {
		return Map{}, fmt.Errorf("data of %w", err)
	}
	defer file.Close()
	list := rangeList{limit: limit}
	if err := add(ctx, file, size, &list); err != nil {
		return Map{}, err
	}
	return Map{SizeBytes: size, Ranges: list.ranges, Coalesced: list.gap > 0}, nil
}

func dataRanges(ctx context.Context, file *os.File, size int64, list *rangeList) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return eachData(file, 0, size, func(found extent) error {
		list.add(Range{found.offset, found.length})
		return ctx.Err()
	})
}

// rangeList keeps ranges within a limit.
type rangeList struct {
	limit  int
	ranges []Range
	// gap is the largest hole that is not kept.
	gap int64
}

func (l *rangeList) add(next Range) {
	for !l.join(next) {
		if len(l.ranges) < l.limit {
			l.ranges = append(l.ranges, next)
			return
		}
		l.coalesce()
	}
}

// join makes next part of the last range when the hole between them is none, or too small to keep.
func (l *rangeList) join(next Range) bool {
	if len(l.ranges) == 0 {
		return false
	}
	last := &l.ranges[len(l.ranges)-1]
	if next.Offset-(last.Offset+last.Length) > l.gap {
		return false
	}
	last.Length = next.Offset + next.Length - last.Offset
	return true
}

// coalesce gives up holes of twice the size that was given up before.
func (l *rangeList) coalesce() {
	l.gap = max(2*l.gap, pageBytes)
	all := l.ranges
	l.ranges = l.ranges[:0]
	for _, r := range all {
		if !l.join(r) {
			l.ranges = append(l.ranges, r)
		}
	}
}
