package filesystem

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	filesystempb "aenv/native/gen/filesystem"
	"aenv/native/gen/filesystem/filesystemconnect"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/runclock"
	"aenv/native/internal/envd/stream"
	"aenv/native/internal/envd/users"
)

type bench struct {
	t       *testing.T
	dir     string
	service *Service
	client  filesystemconnect.FilesystemClient
}

func newBench(t *testing.T) *bench {
	t.Helper()
	who := identity.NewStore(users.Database{})
	who.Accept("", "", identity.Identity{DefaultUser: "root"})
	service := NewService(who, &runclock.Clock{})
	t.Cleanup(service.Close)
	_, handler := filesystemconnect.NewFilesystemHandler(service)
	server := httptest.NewServer(stream.Wrap(handler))
	t.Cleanup(server.Close)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t, dir, service, filesystemconnect.NewFilesystemClient(server.Client(), server.URL, connect.WithProtoJSON())}
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) stat(path string) (*filesystempb.EntryInfo, error) {
	res, err := b.client.Stat(context.Background(), connect.NewRequest(&filesystempb.StatRequest{Path: path}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Entry, nil
}

func (b *bench) mkdir(path string) error {
	_, err := b.client.MakeDir(context.Background(), connect.NewRequest(&filesystempb.MakeDirRequest{Path: path}))
	return err
}

func (b *bench) list(path string, depth uint32) ([]string, error) {
	res, err := b.client.ListDir(context.Background(), connect.NewRequest(&filesystempb.ListDirRequest{Path: path, Depth: depth}))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range res.Msg.Entries {
		names = append(names, strings.TrimPrefix(entry.Path, path+"/"))
	}
	return names, nil
}

func (b *bench) move(from, to string) error {
	_, err := b.client.Move(context.Background(), connect.NewRequest(&filesystempb.MoveRequest{Source: from, Destination: to}))
	return err
}

func (b *bench) remove(path string) error {
	_, err := b.client.Remove(context.Background(), connect.NewRequest(&filesystempb.RemoveRequest{Path: path}))
	return err
}

func TestCodes(t *testing.T) {
	b := newBench(t)
	b.must(os.WriteFile(b.path("file"), []byte("12345"), 0o640))
	b.must(os.Mkdir(b.path("dir"), 0o755))
	_, statMissing := b.stat(b.path("missing"))
	_, listMissing := b.list(b.path("missing"), 1)
	_, listFile := b.list(b.path("file"), 1)
	_, watchFile := b.client.CreateWatcher(context.Background(), connect.NewRequest(&filesystempb.CreateWatcherRequest{Path: b.path("file")}))
	_, watchMissing := b.client.CreateWatcher(context.Background(), connect.NewRequest(&filesystempb.CreateWatcherRequest{Path: b.path("missing")}))
	for what, c := range map[string]struct {
		err  error
		want connect.Code
	}{
		"stat missing":     {statMissing, connect.CodeNotFound},
		"list missing":     {listMissing, connect.CodeNotFound},
		"list file":        {listFile, connect.CodeInvalidArgument},
		"watch file":       {watchFile, connect.CodeInvalidArgument},
		"watch missing":    {watchMissing, connect.CodeNotFound},
		"mkdir existing":   {b.mkdir(b.path("dir")), connect.CodeAlreadyExists},
		"mkdir on file":    {b.mkdir(b.path("file")), connect.CodeInvalidArgument},
		"mkdir below file": {b.mkdir(b.path("file/x")), connect.CodeInvalidArgument},
		"move missing":     {b.move(b.path("missing"), b.path("x")), connect.CodeNotFound},
		"remove root":      {b.remove("/"), connect.CodeInvalidArgument},
	} {
		if connect.CodeOf(c.err) != c.want {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	b.must(b.remove(b.path("missing")))
	b.must(b.mkdir(b.path("a/b/c")))
	b.must(b.move(b.path("file"), b.path("new/place/file")))
	entry, err := b.stat(b.path("new/place/file"))
	b.must(err)
	if entry.Name != "file" || entry.Size != 5 || entry.Mode != 0o640 || entry.Permissions != "-rw-r-----" || entry.Owner != "root" ||
		entry.Group != "root" || entry.Type != filesystempb.FileType_FILE_TYPE_FILE || entry.ModifiedTime == nil || entry.SymlinkTarget != nil {
		t.Errorf("entry = %v", entry)
	}
}

func TestMoveBetweenFileSystems(t *testing.T) {
	b := newBench(t)
	other, err := os.MkdirTemp("/dev/shm", "envd-test")
	if err != nil {
		t.Skipf("no second file system: %v", err)
	}
	defer os.RemoveAll(other)
	b.must(os.MkdirAll(other+"/tree/sub", 0o750))
	b.must(os.WriteFile(other+"/tree/sub/file", []byte("x"), 0o600))
	b.must(os.Chmod(other+"/tree/sub/file", 0o711|os.ModeSetuid))
	b.must(unix.Setxattr(other+"/tree/sub/file", metadataPrefix+"kind", []byte("small"), 0))
	b.must(unix.Setxattr(other+"/tree/sub", metadataPrefix+"kind", []byte("folder"), 0))
	b.must(os.Chown(other+"/tree/sub", 7, 8))
	b.must(os.Symlink("sub/file", other+"/tree/link"))
	b.must(b.move(other+"/tree", b.path("moved")))
	names, err := b.list(b.path("moved"), 5)
	b.must(err)
	if !slices.Equal(names, []string{"link", "sub", "sub/file"}) {
		t.Fatalf("moved: %v", names)
	}
	var stat unix.Stat_t
	b.must(unix.Stat(b.path("moved/sub"), &stat))
	info, err := os.Stat(b.path("moved/sub/file"))
	b.must(err)
	if stat.Uid != 7 || stat.Gid != 8 || info.Mode() != 0o711|os.ModeSetuid {
		t.Fatalf("owner %d:%d, mode %v", stat.Uid, stat.Gid, info.Mode())
	}
	if got := metadataOf(b.path("moved/sub/file")); got["kind"] != "small" {
		t.Errorf("metadata: %v", got)
	}
	if got := metadataOf(b.path("moved/sub")); got["kind"] != "folder" {
		t.Errorf("metadata of a folder: %v", got)
	}
	if _, err := os.Lstat(other + "/tree"); !os.IsNotExist(err) {
		t.Fatal("the source is still there")
	}
}

// FILE-08: links in list, stat, remove, at every depth.
func TestFILE08Links(t *testing.T) {
	b := newBench(t)
	b.must(os.MkdirAll(b.path("real/deep"), 0o755))
	b.must(os.WriteFile(b.path("real/file"), []byte("1"), 0o600))
	for link, target := range map[string]string{"todir": "real", "tofile": "real/file", "dangling": "nowhere", "loop": "loop", "real/up": ".."} {
		b.must(os.Symlink(target, b.path(link)))
	}
	names, err := b.list(b.path("todir"), 3)
	b.must(err)
	if !slices.Equal(names, []string{"deep", "file", "up"}) {
		t.Errorf("through a link: %v", names)
	}
	names, err = b.list(b.dir, 3)
	b.must(err)
	if !slices.Equal(names, []string{"dangling", "loop", "real", "real/deep", "real/file", "real/up", "todir", "tofile"}) {
		t.Errorf("depth 3: %v", names)
	}
	zero, err := b.list(b.dir, 0)
	b.must(err)
	if len(zero) != 5 {
		t.Errorf("depth 0: %v", zero)
	}
	tofile, err := b.stat(b.path("tofile"))
	b.must(err)
	if tofile.Type != filesystempb.FileType_FILE_TYPE_FILE || tofile.Mode != 0o600 || tofile.GetSymlinkTarget() != b.path("real/file") ||
		tofile.Permissions != "Lrwxrwxrwx" || !tofile.IsSymlink || tofile.Path != b.path("tofile") {
		t.Errorf("link to file: %v", tofile)
	}
	for _, name := range []string{"dangling", "loop"} {
		entry, err := b.stat(b.path(name))
		b.must(err)
		if entry.Type != filesystempb.FileType_FILE_TYPE_UNSPECIFIED || entry.GetSymlinkTarget() != b.path(name) {
			t.Errorf("%s: %v", name, entry)
		}
	}
	if _, err := b.list(b.path("loop"), 1); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("list of a loop: %v", err)
	}
	for link, target := range map[string]string{"outside": "/proc/self/root", "far": strings.Repeat("../", 40) + "etc"} {
		b.must(os.Symlink(target, b.path(link)))
		entry, err := b.stat(b.path(link))
		b.must(err)
		if entry.Type != filesystempb.FileType_FILE_TYPE_DIRECTORY || entry.Path != b.path(link) || !strings.HasPrefix(entry.GetSymlinkTarget(), "/") {
			t.Errorf("%s: %v", link, entry)
		}
		names, err := b.list(b.path(link), 1)
		b.must(err)
		if len(names) == 0 {
			t.Errorf("nothing through %s", link)
		}
		b.must(b.remove(b.path(link)))
	}
	res, err := b.client.CreateWatcher(context.Background(), connect.NewRequest(&filesystempb.CreateWatcherRequest{Path: b.path("todir"), Recursive: true}))
	b.must(err)
	b.must(os.WriteFile(b.path("real/deep/seen"), nil, 0o644))
	b.poll(res.Msg.WatcherId, "CREATE deep/seen")
	b.must(b.remove(b.path("todir")))
	if _, err := os.Stat(b.path("real/file")); err != nil {
		t.Error("removing a link removed its target")
	}
}

// FILE-01: many make the same directories at once; all belong to the user.
func TestFILE01ParallelParents(t *testing.T) {
	dir := t.TempDir()
	user := users.User{Name: "nobody", UID: 65534, GID: 65534}
	for round := range 20 {
		results := make(chan error, 16)
		for i := range cap(results) {
			go func() { results <- EnsureDirs(fmt.Sprintf("%s/%d/a/b/c/%d", dir, round, i%3), user) }()
		}
		for range cap(results) {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
		var stat unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("%s/%d/a/b", dir, round), &stat); err != nil || stat.Uid != user.UID || stat.Mode&0o777 != 0o755 {
			t.Fatalf("uid %d mode %o %v", stat.Uid, stat.Mode, err)
		}
	}
}

func TestMetadata(t *testing.T) {
	b := newBench(t)
	file, err := os.Create(b.path("f"))
	b.must(err)
	defer file.Close()
	b.must(ReplaceMetadata(file, map[string]string{"a": "1", "b": strings.Repeat("x", 600)}))
	entry, err := b.stat(b.path("f"))
	b.must(err)
	if len(entry.Metadata) == 0 {
		t.Skip("the temporary directory has no extended attributes")
	}
	if entry.Metadata["a"] != "1" || len(entry.Metadata["b"]) != 600 {
		t.Errorf("metadata %v", entry.Metadata)
	}
	b.must(ReplaceMetadata(file, map[string]string{"c": "3"}))
	entry, err = b.stat(b.path("f"))
	b.must(err)
	if len(entry.Metadata) != 1 || entry.Metadata["c"] != "3" {
		t.Errorf("replaced: %v", entry.Metadata)
	}
	for _, bad := range []map[string]string{{"": "x"}, {"a": "ü"}, {"a": "x\n"}, {"a": strings.Repeat("x", 5000)}} {
		if CheckMetadata(bad) == nil {
			t.Errorf("%.30v is accepted", bad)
		}
	}
}
