package sparse

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// combed makes a file with a page of data at each of the given pages.
func combed(t *testing.T, at ...int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	for _, number := range at {
		if _, err := file.WriteAt(make([]byte, pageBytes), number*pageBytes); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestTooManyRangesLoseTheirSmallestHoles(t *testing.T) {
	path := combed(t, 0, 2, 4, 100, 104, 108, 110, 5000, 100000)
	span := func(first, last int64) Range { return Range{first * pageBytes, (last + 1 - first) * pageBytes} }
	for limit, want := range map[int][]Range{
		9: {span(0, 0), span(2, 2), span(4, 4), span(100, 100), span(104, 104), span(108, 108), span(110, 110), span(5000, 5000), span(100000, 100000)},
		// Holes of one page, of up to four, of up to 128, all.
		6: {span(0, 4), span(100, 100), span(104, 104), span(108, 110), span(5000, 5000), span(100000, 100000)},
		4: {span(0, 4), span(100, 110), span(5000, 5000), span(100000, 100000)},
		3: {span(0, 110), span(5000, 5000), span(100000, 100000)},
		1: {span(0, 100000)},
	} {
		found, err := DataRanges(t.Context(), path, limit)
		if err != nil || !slices.Equal(found.Ranges, want) || found.Coalesced != (limit < 9) || found.SizeBytes != 1<<30 {
			t.Errorf("at most %d: %+v, %v; want %v", limit, found, err, want)
		}
	}
}

func TestACancelledCopyLeavesNothing(t *testing.T) {
	path := combed(t, 5)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Copy(ctx, path, filepath.Join(filepath.Dir(path), "g")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("there is %v, %v", entries, err)
	}
}
