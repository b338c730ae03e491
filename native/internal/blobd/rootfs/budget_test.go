package rootfs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/tartest"
)

// many makes count entries.
func many(count int, entry func(i int) tar.Header) []tar.Header {
	var list []tar.Header
	for i := range count {
		list = append(list, entry(i))
	}
	return list
}

// readAndApply reads one layer and applies it so often.
func readAndApply(t *testing.T, raw []byte, budget *Budget, times int) (*Layer, *Tree, error) {
	t.Helper()
	spool, err := NewSpool(filepath.Join(t.TempDir(), "spool"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	layer, err := ReadTar(t.Context(), bytes.NewReader(raw), spool, budget, TarOptions{Whiteouts: true})
	if err != nil {
		return nil, nil, err
	}
	tree := NewTree(budget)
	for range times {
		if err := tree.Apply(layer, 0); err != nil {
			return nil, nil, err
		}
	}
	return layer, tree, nil
}

func TestWhateverTakesMemoryIsCounted(t *testing.T) {
	for name, c := range map[string]struct {
		entries []tar.Header
		times   int
	}{
		"files":        {many(600, func(i int) tar.Header { return tartest.File(fmt.Sprint(i), "") }), 0},
		"long paths":   {many(80, func(i int) tar.Header { return tartest.File(strings.Repeat("p/", 2000)+fmt.Sprint(i), "") }), 0},
		"link targets": {many(80, func(i int) tar.Header { return tartest.Symlink(fmt.Sprint(i), strings.Repeat("t", 4000)) }), 0},
		"hard links":   {many(80, func(i int) tar.Header { return tartest.Link(fmt.Sprint(i), strings.Repeat("t/", 2000)) }), 0},
		"attributes": {many(5, func(i int) tar.Header {
			return withXattr(tartest.File(fmt.Sprint(i), ""), "user.a", strings.Repeat("v", 60_000))
		}), 0},
		"whiteouts":           {many(2000, func(i int) tar.Header { return tartest.Whiteout(fmt.Sprintf("%0100d/.wh.x", i)) }), 0},
		"opaque markers":      {many(2000, func(i int) tar.Header { return tartest.Whiteout(fmt.Sprintf("%0100d/.wh..wh..opq", i)) }), 0},
		"implied directories": {[]tar.Header{tartest.File(strings.Repeat("d/", 1000)+"f", "")}, 1},
		"a layer repeated":    {[]tar.Header{tartest.File("f", "")}, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			raw := tartest.Tar(t, c.entries...)
			_, _, err := readAndApply(t, raw, NewBudget(Limits{MetadataBytes: 200 << 10, DataBytes: 1}), c.times)
			if fault.KindOf(err) != fault.Invalid || !IsLocal(err) || !strings.Contains(err.Error(), "limit") {
				t.Errorf("got %v, want the limit, as fault.Invalid", err)
			}
			if _, _, err := readAndApply(t, raw, NewBudget(Limits{MetadataBytes: 4 << 20, DataBytes: 1}), c.times); err != nil {
				t.Errorf("refused within the limit: %v", err)
			}
		})
	}
}

func TestFileDataIsLimitedBeforeItIsRead(t *testing.T) {
	raw := tartest.Tar(t, tartest.File("a", "12"), tartest.File("b", "345"))
	if _, _, err := readAndApply(t, raw, NewBudget(Limits{MetadataBytes: 1 << 20, DataBytes: 5}), 1); err != nil {
		t.Error(err)
	}
	// Of the second file no byte is there: its size alone decides.
	if _, _, err := readAndApply(t, raw[:2048+512], NewBudget(Limits{MetadataBytes: 1 << 20, DataBytes: 4}), 1); fault.KindOf(err) != fault.Invalid || !IsLocal(err) {
		t.Errorf("got %v, want the limit, as fault.Invalid", err)
	}
}

func TestAPartGivesBackWhatItTook(t *testing.T) {
	budget := NewBudget(Limits{MetadataBytes: 1000, DataBytes: 1000})
	for range 3 {
		part := budget.Part()
		if err := part.takeMetadata(900); err != nil {
			t.Fatal(err)
		}
		if err := part.takeData(900); err != nil {
			t.Fatal(err)
		}
		if budget.takeMetadata(200) == nil || budget.takeData(200) == nil {
			t.Error("what a part has taken is there for others")
		}
		part.GiveBack()
		budget.metadata.Store(0)
		budget.data.Store(0)
	}
}

func TestNamesAndDepthAreThoseOfTheKernel(t *testing.T) {
	long := strings.Repeat("n", 255)
	if _, err := merge(t, []tar.Header{tartest.File(long+"/"+long, "")}, []tar.Header{tartest.Whiteout(long + "/.wh." + long)}); err != nil {
		t.Errorf("names of 255 bytes: %v", err)
	}
	deep := strings.Repeat("d/", 1000)
	for name, entries := range map[string][]tar.Header{
		"name":           {tartest.File("a/"+long+"n/f", "")},
		"removed name":   {tartest.Whiteout("a/.wh." + long + "n")},
		"name in a link": {tartest.Symlink("l", long+"n"), tartest.File("l/f", "")},
		"depth":          {tartest.File(strings.Repeat("d/", 1100)+"f", "")},
		"depth by links": {tartest.Dir(deep, 0o755), tartest.Symlink("l", deep), tartest.File("l/"+deep+"f", "")},
	} {
		if _, err := merge(t, entries); fault.KindOf(err) != fault.Invalid || len(err.Error()) > 5000 {
			t.Errorf("%s: got %v, want fault.Invalid", name, err)
		}
	}
}

func TestABudgetIsNotLessThanTheMemory(t *testing.T) {
	const count = 30_000
	for name, entry := range map[string]func(i int) tar.Header{
		"files": func(i int) tar.Header { return tartest.File(fmt.Sprintf("d%d/f%d", i%100, i), "") },
		"directories of one file each": func(i int) tar.Header {
			return tartest.File(fmt.Sprintf("directory-%d/f", i), "")
		},
		// The header of each is a whole kilobyte; of that only the target may stay.
		"short texts of long headers": func(i int) tar.Header {
			h := tartest.Symlink(fmt.Sprint(i), "target \xe9")
			h.PAXRecords = map[string]string{"COMMENT.x": strings.Repeat("c", 1000)}
			return withXattr(h, "user.a", "v")
		},
	} {
		raw := tartest.Tar(t, many(count, entry)...)
		budget := NewBudget(DefaultLimits)
		before := heapBytes()
		layer, tree, err := readAndApply(t, raw, budget, 1)
		if err != nil {
			t.Fatal(err)
		}
		used := heapBytes() - before
		runtime.KeepAlive(raw)
		runtime.KeepAlive(layer)
		runtime.KeepAlive(tree)
		t.Logf("%s: %d bytes each, counted %d", name, used/count, budget.metadata.Load()/count)
		if used > budget.metadata.Load() {
			t.Errorf("%s: %d bytes of memory, only %d counted", name, used, budget.metadata.Load())
		}
	}
}

func heapBytes() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestALargeDirectoryIsListedWithinTheBudget(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%0200d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := readNames(dir, NewBudget(Limits{MetadataBytes: 20 << 10})); fault.KindOf(err) != fault.Invalid {
		t.Errorf("got %v, want fault.Invalid", err)
	}
}
