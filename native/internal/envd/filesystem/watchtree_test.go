package filesystem

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// More events than the kernel keeps: the client is told, and what changed meanwhile in the tree is watched from then on.
func TestATreeIsWatchedAfterALoss(t *testing.T) {
	b := newBench(t)
	b.must(os.MkdirAll(b.path("was/below"), 0o755))
	b.must(os.MkdirAll(b.path("left"), 0o755))
	b.must(os.WriteFile(b.path("f"), nil, 0o644))
	id := b.watcher(true)
	inside := b.inside(id)
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	b.must(err)
	kept, err := strconv.Atoi(strings.TrimSpace(string(text)))
	b.must(err)
	inside.reading.Lock()
	for i := range kept + 1 {
		// Others than the one before: the kernel keeps equal ones once.
		if i%2 == 0 {
			b.must(os.Chmod(b.path("f"), 0o600))
		} else {
			b.must(os.Chmod(b.path("was"), 0o755))
		}
	}
	b.must(os.MkdirAll(b.path("late/below"), 0o755))
	b.must(os.Rename(b.path("was"), b.path("is")))
	b.must(os.Remove(b.path("left")))
	inside.reading.Unlock()
	if err := b.ask(id); connect.CodeOf(err) != connect.CodeDataLoss {
		t.Fatalf("a loss is told as %v", err)
	}
	for _, name := range []string{"late/f", "late/below/f", "is/f", "is/below/f"} {
		b.must(os.WriteFile(b.path(name), nil, 0o644))
	}
	b.poll(id, "CREATE late/f", "CREATE late/below/f", "CREATE is/f", "CREATE is/below/f")
	inside.reading.Lock()
	defer inside.reading.Unlock()
	if len(inside.dirs) != 5 || len(inside.wds) != 5 {
		t.Errorf("watched: %v, %v", inside.dirs, inside.wds)
	}
}

// A watch that the kernel did not give is asked for again, and until it is there the client is told of losses.
func TestAWatchThatIsMissingIsTriedAgain(t *testing.T) {
	b := newBench(t)
	id := b.watcher(true)
	inside := b.inside(id)
	b.must(os.Mkdir(b.path("late"), 0o755))
	b.poll(id, "CREATE late")
	inside.reading.Lock()
	inside.leave("late", true)
	inside.incomplete = true
	inside.reading.Unlock()
	if err := b.ask(id); connect.CodeOf(err) != connect.CodeDataLoss {
		t.Fatalf("a loss is told as %v", err)
	}
	b.must(os.WriteFile(b.path("late/f"), nil, 0o644))
	b.poll(id, "CREATE late/f")
}

// A folder that can never be watched, for it is deeper than a path is long, costs one loss: what is beside it is told as before.
func TestWhatCannotBeWatchedKeepsNothingElseFromIt(t *testing.T) {
	b := newBench(t)
	b.must(os.Mkdir(b.path("z"), 0o755))
	id := b.watcher(true)
	outside := t.TempDir()
	at, err := unix.Open(outside, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	b.must(err)
	name := strings.Repeat("deep", 50)
	for range unix.PathMax/len(name) + 5 {
		b.must(unix.Mkdirat(at, name, 0o755))
		below, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		b.must(err)
		b.must(unix.Close(at))
		at = below
	}
	b.must(unix.Close(at))
	b.must(os.Rename(outside+"/"+name, b.path("a")))
	if err := b.ask(id); connect.CodeOf(err) != connect.CodeDataLoss {
		t.Fatalf("a loss is told as %v", err)
	}
	for _, name := range []string{"z/f", "a/f", "g"} {
		b.must(os.WriteFile(b.path(name), nil, 0o644))
		b.poll(id, "CREATE "+name)
	}
	b.must(os.Rename(b.dir, outside+"/moved"))
	b.poll(id, "RENAME .")
	b.poll(id)
	b.must(removeTree(outside + "/moved"))
}

// What happens to the watched folder itself is told as ".". Under its new name it is another: nothing of it is told.
func TestTheWatchedFolderItself(t *testing.T) {
	for _, recursive := range []bool{false, true} {
		for end, want := range map[string]string{"rename": "RENAME .", "remove": "REMOVE ."} {
			b := newBench(t)
			outside := t.TempDir()
			b.must(os.Mkdir(b.path("sub"), 0o755))
			id := b.watcher(recursive)
			b.must(os.Chmod(b.dir, 0o700))
			b.poll(id, "CHMOD .")
			wants := []string{want}
			switch end {
			case "rename":
				b.must(os.Rename(b.dir, outside+"/moved"))
				b.must(os.Chmod(outside+"/moved", 0o755))
				b.must(os.WriteFile(outside+"/moved/sub/f", nil, 0o644))
				b.must(os.WriteFile(outside+"/moved/f", nil, 0o644))
			case "remove":
				wants = []string{"REMOVE sub", want}
				b.must(os.RemoveAll(b.dir))
			}
			got := b.poll(id, want)
			b.must(os.Mkdir(b.dir, 0o755))
			b.must(os.WriteFile(b.path("f"), nil, 0o644))
			got = append(got, b.poll(id)...)
			if !slices.Equal(got, wants) {
				t.Errorf("%s, recursive %v: %v", end, recursive, got)
			}
		}
	}
}
