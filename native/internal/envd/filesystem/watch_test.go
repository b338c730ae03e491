package filesystem

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	filesystempb "aenv/native/gen/filesystem"
)

// poll collects a polling watcher's events until they contain all wanted, or time is up.
func (b *bench) poll(id string, want ...string) []string {
	b.t.Helper()
	var got []string
	deadline := time.Now().Add(5 * time.Second)
	for {
		res, err := b.client.GetWatcherEvents(context.Background(), connect.NewRequest(&filesystempb.GetWatcherEventsRequest{WatcherId: id}))
		b.must(err)
		for _, event := range res.Msg.Events {
			got = append(got, strings.TrimPrefix(event.Type.String(), "EVENT_TYPE_")+" "+event.Name)
		}
		missing := slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(got, w) })
		if !missing {
			return got
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("events %v, want %v", got, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (b *bench) watcher(recursive bool) string {
	b.t.Helper()
	res, err := b.client.CreateWatcher(context.Background(), connect.NewRequest(&filesystempb.CreateWatcherRequest{Path: b.dir, Recursive: recursive}))
	b.must(err)
	return res.Msg.WatcherId
}

// inside is the service's own side of a polling watcher.
func (b *bench) inside(id string) *pollingWatcher {
	b.service.watchers.mu.Lock()
	defer b.service.watchers.mu.Unlock()
	return b.service.watchers.byID[id]
}

// ask takes a watcher's events, or the error instead of them.
func (b *bench) ask(id string) error {
	_, err := b.client.GetWatcherEvents(context.Background(), connect.NewRequest(&filesystempb.GetWatcherEventsRequest{WatcherId: id}))
	return err
}

func TestPollingWatcher(t *testing.T) {
	b := newBench(t)
	id := b.watcher(false)
	b.must(os.WriteFile(b.path("f"), []byte("x"), 0o644))
	b.must(os.Chmod(b.path("f"), 0o600))
	b.must(os.Rename(b.path("f"), b.path("g")))
	b.must(os.Remove(b.path("g")))
	b.poll(id, "CREATE f", "WRITE f", "CHMOD f", "RENAME f", "CREATE g", "REMOVE g")
	// An upload is the file given to its user and written, and before that created where there was none; its own name is hidden.
	b.must(os.WriteFile(b.path(TemporaryPrefix+"1"), []byte("x"), 0o644))
	b.must(os.Rename(b.path(TemporaryPrefix+"1"), b.path("up")))
	b.must(os.WriteFile(b.path(ReplacingPrefix+"2"), []byte("x"), 0o644))
	b.must(os.Rename(b.path(ReplacingPrefix+"2"), b.path("up")))
	b.must(os.Mkdir(b.path("last"), 0o755))
	if got := b.poll(id, "CREATE last"); !slices.Equal(got, []string{"CREATE up", "CHMOD up", "WRITE up", "CHMOD up", "WRITE up", "CREATE last"}) {
		t.Errorf("uploads are seen as %v", got)
	}
	remove := func() error {
		_, err := b.client.RemoveWatcher(context.Background(), connect.NewRequest(&filesystempb.RemoveWatcherRequest{WatcherId: id}))
		return err
	}
	b.must(remove())
	if err := remove(); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("second remove: %v", err)
	}
}

// E2B's clients write a file and ask at once.
func TestPollingWatcherKnowsWhatWasDoneBefore(t *testing.T) {
	b := newBench(t)
	id := b.watcher(false)
	for i := range 500 {
		b.must(os.Mkdir(b.path(fmt.Sprint(i)), 0o755))
		res, err := b.client.GetWatcherEvents(context.Background(), connect.NewRequest(&filesystempb.GetWatcherEventsRequest{WatcherId: id}))
		b.must(err)
		if len(res.Msg.Events) != 1 || res.Msg.Events[0].Name != fmt.Sprint(i) {
			t.Fatalf("after %d: %v", i, res.Msg.Events)
		}
	}
}

// FILE-05: every entry of a burst is reported as created exactly once.
func TestFILE05BurstUnderARecursiveWatch(t *testing.T) {
	b := newBench(t)
	outside := t.TempDir()
	b.must(os.MkdirAll(outside+"/tree/x", 0o755))
	b.must(os.WriteFile(outside+"/tree/x/ready", nil, 0o644))
	id := b.watcher(true)
	want := []string{"CREATE tree", "CREATE tree/x", "CREATE tree/x/ready"}
	for i := range 40 {
		dir := fmt.Sprintf("d%d/b/c", i)
		b.must(os.MkdirAll(b.path(dir), 0o755))
		for j := range 20 {
			b.must(os.WriteFile(b.path(fmt.Sprintf("%s/f%d", dir, j)), []byte("x"), 0o644))
			want = append(want, fmt.Sprintf("CREATE %s/f%d", dir, j))
		}
		want = append(want, fmt.Sprintf("CREATE d%d", i), fmt.Sprintf("CREATE d%d/b", i), "CREATE "+dir)
	}
	b.must(os.Rename(outside+"/tree", b.path("tree")))
	got := b.poll(id, want...)
	seen := map[string]int{}
	for _, event := range got {
		seen[event]++
	}
	for _, event := range want {
		if seen[event] != 1 {
			t.Errorf("%s came %d times", event, seen[event])
		}
	}
	// A second generation of the same names is reported again.
	b.must(os.RemoveAll(b.path("d0")))
	b.poll(id, "REMOVE d0")
	b.must(os.MkdirAll(b.path("d0/b"), 0o755))
	b.must(os.WriteFile(b.path("d0/b/again"), []byte("x"), 0o644))
	b.poll(id, "CREATE d0", "CREATE d0/b", "CREATE d0/b/again", "WRITE d0/b/again")
}

func TestWatchStream(t *testing.T) {
	b := newBench(t)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	in, err := b.client.WatchDir(ctx, connect.NewRequest(&filesystempb.WatchDirRequest{Path: b.dir, IncludeEntry: true}))
	b.must(err)
	if !in.Receive() || in.Msg().GetStart() == nil {
		t.Fatalf("first message %v, %v", in.Msg(), in.Err())
	}
	b.must(os.WriteFile(b.path("f"), []byte("abc"), 0o644))
	for in.Receive() {
		event := in.Msg().GetFilesystem()
		if event.GetName() != "f" {
			t.Fatalf("event %v", in.Msg())
		}
		if event.Type == filesystempb.EventType_EVENT_TYPE_WRITE {
			if event.GetEntry().GetPath() != b.path("f") {
				t.Fatalf("entry %v", event.Entry)
			}
			return
		}
	}
	t.Fatal(in.Err())
}

// A client that never reads is told that events are lost, once, and the watch goes on; all watchers together are bounded,
// and those that nobody asks make room for others.
func TestWatchersAreBounded(t *testing.T) {
	b := newBench(t)
	first := b.watcher(false)
	id := b.watcher(false)
	busy := b.inside(id)
	isLost := func() bool {
		busy.mu.Lock()
		defer busy.mu.Unlock()
		return busy.lost
	}
	for i := 0; !isLost(); i++ {
		if i > 20*watcherEvents {
			t.Fatal("nothing is ever lost")
		}
		b.must(os.WriteFile(b.path("f"), nil, 0o644))
		b.must(os.Remove(b.path("f")))
	}
	if err := b.ask(id); connect.CodeOf(err) != connect.CodeDataLoss {
		t.Fatalf("a loss is told as %v", err)
	}
	b.must(os.WriteFile(b.path("after"), nil, 0o644))
	b.poll(id, "CREATE after")
	for range pollingWatchersMax - 1 {
		b.watcher(false)
	}
	if err := b.ask(first); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("the one that nobody asked: %v", err)
	}
	b.must(b.ask(id))
	b.service.Close()
	if left := b.service.waiting.Load(); left != 0 {
		t.Errorf("%d events wait in watchers that are closed", left)
	}
}

// FILE-08: a name that is no UTF-8 does not spoil what is told of its neighbours.
func TestNamesOfAnyBytes(t *testing.T) {
	b := newBench(t)
	id := b.watcher(true)
	odd := "caf\xe9 \n*?'\"\\"
	b.must(os.WriteFile(b.path(odd), []byte("x"), 0o644))
	b.must(os.Symlink(odd, b.path("link")))
	b.must(os.WriteFile(b.path("plain"), []byte("x"), 0o644))
	shown := "caf\uFFFD \n*?'\"\\"
	b.poll(id, "CREATE "+shown, "CREATE plain")
	res, err := b.client.ListDir(context.Background(), connect.NewRequest(&filesystempb.ListDirRequest{Path: b.dir}))
	b.must(err)
	names := []string{}
	for _, entry := range res.Msg.Entries {
		names = append(names, entry.Name)
	}
	if !slices.Equal(names, []string{shown, "link", "plain"}) || res.Msg.Entries[1].GetSymlinkTarget() != b.path(shown) {
		t.Errorf("%q, the link leads to %q", names, res.Msg.Entries[1].GetSymlinkTarget())
	}
}
