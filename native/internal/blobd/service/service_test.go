package service

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	blobdv1 "aenv/native/gen/aenv/blobd/v1"
	"aenv/native/gen/aenv/blobd/v1/blobdv1connect"
	"aenv/native/internal/blobd/images"
	"aenv/native/internal/blobd/tartest"
)

// start runs the service on a folder and gives a client. The machine that runs the tests may be short of disk: no reserve,
// unless a setting says so.
func start(t *testing.T, root string, settings ...func(*Service)) blobdv1connect.BlobdClient {
	t.Helper()
	store, err := images.Open(root, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	blobd := New(store, slog.New(slog.DiscardHandler))
	keepFree(0)(blobd)
	for _, set := range settings {
		set(blobd)
	}
	server := httptest.NewServer(blobd.Handler())
	t.Cleanup(func() {
		blobd.Close()
		server.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return blobdv1connect.NewBlobdClient(server.Client(), server.URL)
}

// keepFree sets the disk's reserve.
func keepFree(bytes uint64) func(*Service) {
	return func(s *Service) { s.disk.ReserveBytes = func(uint64) uint64 { return bytes } }
}

// serve starts a registry whose blobs can be held back: hold is called before each blob is sent.
func serve(t *testing.T, hold func(*http.Request)) (host string) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && hold != nil {
			hold(r)
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func push(t *testing.T, reference string, image v1.Image) {
	t.Helper()
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
}

type responses interface {
	Receive() bool
	Msg() *blobdv1.PullResponse
	Err() error
}

// last reads a stream to its end.
func last(stream responses, err error) (*blobdv1.PullResponse, error) {
	if err != nil {
		return nil, err
	}
	var message *blobdv1.PullResponse
	for stream.Receive() {
		message = stream.Msg()
	}
	return message, stream.Err()
}

func pull(ctx context.Context, client blobdv1connect.BlobdClient, reference, lease string) (*blobdv1.PullResponse, error) {
	stream, err := client.Pull(ctx, connect.NewRequest(&blobdv1.PullRequest{Reference: reference, LeaseId: lease, Platform: "linux/amd64"}))
	return last(stream, err)
}

func xattr(h tar.Header, name, value string) tar.Header {
	h.PAXRecords["SCHILY.xattr."+name] = value
	return h
}

func mode(h tar.Header, mode int64) tar.Header {
	h.Mode = mode
	return h
}

const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func TestAnImageIsShownExactly(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	client := start(t, t.TempDir())
	host := serve(t, nil)
	hollow := tartest.Layer(t, tartest.Tar(t))
	push(t, host+"/all:1", tartest.Image(t,
		tartest.Layer(t, tartest.Tar(t, tartest.Dir("d", 0o755), tartest.File("d/gone", "1"), tartest.File("d/kept", "2"),
			tartest.Dir("o", 0o755), tartest.File("o/old", "3"), mode(tartest.File("su", "#!"), 0o4755), tartest.Dir("tmp", 0o700),
			xattr(xattr(tartest.File("cap", "4"), "security.capability", capability), "user.empty", ""),
			tartest.File("a", strings.Repeat("linked ", 5000)), tartest.Link("b", "a"), tartest.Link("c", "a"))),
		hollow, hollow,
		tartest.Layer(t, tartest.Tar(t, tartest.Whiteout("d/.wh.gone"), tartest.File("o/new", "5"), tartest.Whiteout("o/.wh..wh..opq"),
			tartest.Whiteout(".wh.a"), tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666, Devmajor: 1, Devminor: 3},
			tar.Header{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o600, Uid: 70_000, Gid: 5}, tartest.Symlink("l", "../../d")))))
	done, err := pull(t.Context(), client, host+"/all:1", "one")
	if err != nil {
		t.Fatal(err)
	}
	if p := done.Progress; p.Phase != "done" || p.DoneBytes != p.TotalBytes || p.TotalBytes == 0 || p.LayersDone != 3 {
		t.Errorf("last progress: %v", p)
	}
	if i := done.Image; i.Layers != 4 || i.Platform != "linux/amd64" || i.Config.User != "u" || i.Config.Entrypoint[0] != "/e" || i.Config.WorkingDir != "/w" {
		t.Errorf("image: %v", i)
	}
	mounted, err := client.Mount(t.Context(), connect.NewRequest(&blobdv1.MountRequest{Digest: done.Image.Digest, LeaseId: "one"}))
	if err != nil {
		t.Fatal(err)
	}
	defer releaseAll(t, client)
	checkShown(t, mounted.Msg.Path)
}

func checkShown(t *testing.T, root string) {
	t.Helper()
	for name, want := range map[string]uint32{"d": 0o40755, "o/new": 0o100644, "su": 0o104755, "tmp": 0o40700, "null": 0o20666, "pipe": 0o10600,
		"l": 0o120777, "proc": 0o40555, ".aenv": 0o40755, "run": 0o40755, "etc": 0o40755, "sys": 0o40555, "dev": 0o40755} {
		var stat unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, name), &stat); err != nil || stat.Mode != want {
			t.Errorf("%s has mode %o, want %o (%v)", name, stat.Mode, want, err)
		}
	}
	for _, name := range []string{"d/gone", "o/old", "a", "o/.wh..wh..opq"} {
		if _, err := os.Lstat(filepath.Join(root, name)); !os.IsNotExist(err) {
			t.Errorf("%s should be gone: %v", name, err)
		}
	}
	for name, want := range map[string]string{"d/kept": "2", "b": strings.Repeat("linked ", 5000), "c": strings.Repeat("linked ", 5000)} {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(got) != want {
			t.Errorf("%s holds %d bytes, want %d (%v)", name, len(got), len(want), err)
		}
	}
	for name, want := range map[string]string{"security.capability": capability, "user.empty": ""} {
		value := make([]byte, 64)
		if n, err := unix.Lgetxattr(filepath.Join(root, "cap"), name, value); err != nil || string(value[:n]) != want {
			t.Errorf("%s is %q (%v)", name, value[:max(n, 0)], err)
		}
	}
	var b, pipe unix.Stat_t
	if err := unix.Stat(filepath.Join(root, "b"), &b); err != nil || b.Nlink != 2 {
		t.Errorf("b has %d links, want 2 (%v)", b.Nlink, err)
	}
	if err := unix.Stat(filepath.Join(root, "pipe"), &pipe); err != nil || pipe.Uid != 70_000 || pipe.Gid != 5 || pipe.Mtim.Sec != tartest.Mtime.Unix() {
		t.Errorf("pipe: %+v (%v)", pipe, err)
	}
	if fs := (unix.Statfs_t{}); unix.Statfs(root, &fs) != nil || fs.Flags&unix.ST_NOSUID != 0 {
		t.Error("the mount forbids set-user-id programs")
	}
}

func releaseAll(t *testing.T, client blobdv1connect.BlobdClient) {
	t.Helper()
	leases, err := client.ListLeases(context.Background(), connect.NewRequest(&blobdv1.ListLeasesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range leases.Msg.LeaseIds {
		if _, err := client.Release(context.Background(), connect.NewRequest(&blobdv1.ReleaseRequest{LeaseId: id})); err != nil {
			t.Error(err)
		}
	}
}

func TestPullsOfOneImageShareOneDownload(t *testing.T) {
	client := start(t, t.TempDir())
	var layerHex string
	var downloads atomic.Int32
	began, goOn := make(chan struct{}, 8), make(chan struct{})
	host := serve(t, func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, layerHex) {
			downloads.Add(1)
			began <- struct{}{}
			<-goOn
		}
	})
	layer := tartest.Layer(t, tartest.Tar(t, tartest.File("a", "1")))
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	image := tartest.Image(t, layer)
	layerHex = "none"
	push(t, host+"/x:1", image)
	push(t, host+"/y:2", image)
	layerHex = digest.Hex

	first, leave := context.WithCancel(t.Context())
	var left errgroup.Group
	left.Go(func() error {
		_, err := pull(first, client, host+"/x:1", "first")
		return err
	})
	<-began
	stream, err := client.Pull(t.Context(), connect.NewRequest(&blobdv1.PullRequest{Reference: host + "/y:2", LeaseId: "second", Platform: "linux/amd64"}))
	if err != nil {
		t.Fatal(err)
	}
	// The second has joined once it hears of the download; then the first goes away.
	for stream.Receive() && stream.Msg().Progress.Phase != "downloading" {
		continue
	}
	leave()
	if err := left.Wait(); connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("the first ended with %v", err)
	}
	close(goOn)
	done, err := last(stream, nil)
	if err != nil || done == nil || done.Image == nil {
		t.Fatalf("the second ended with %v, %v", done, err)
	}
	if downloads.Load() != 1 {
		t.Errorf("%d downloads of one layer", downloads.Load())
	}
	// Known by digest, the image needs no registry at all.
	if _, err := pull(t.Context(), client, "127.0.0.1:1/z@"+done.Image.Digest, "third"); err != nil {
		t.Error(err)
	}
}

func TestNobodyWaitingEndsThePull(t *testing.T) {
	root := t.TempDir()
	client := start(t, root)
	began, ended := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	host := serve(t, func(r *http.Request) {
		if armed.CompareAndSwap(true, false) {
			close(began)
			<-r.Context().Done()
			close(ended)
		}
	})
	push(t, host+"/x:1", tartest.Image(t, tartest.Layer(t, tartest.Tar(t, tartest.File("a", "1")))))
	armed.Store(true)
	ctx, leave := context.WithCancel(t.Context())
	var left errgroup.Group
	left.Go(func() error {
		_, err := pull(ctx, client, host+"/x:1", "l")
		return err
	})
	<-began
	leave()
	if err := left.Wait(); connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("ended with %v", err)
	}
	<-ended
	if _, err := pull(t.Context(), client, host+"/x:1", "l"); err != nil {
		t.Errorf("the next pull: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(entries) != 0 {
		t.Errorf("tmp holds %v, %v", entries, err)
	}
}

func TestAFullDiskRefusesAndHarmsNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a small file system needs root")
	}
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	client := start(t, root)
	host := serve(t, nil)
	noise := make([]byte, 3<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	small := tartest.Layer(t, tartest.Tar(t, tartest.File("a", "1")))
	push(t, host+"/small:1", tartest.Image(t, small))
	push(t, host+"/large:1", tartest.Image(t, small, tartest.Layer(t, tartest.Tar(t, tartest.File("n", string(noise)))),
		tartest.Layer(t, tartest.Tar(t, tartest.File("m", string(noise))))))
	done, err := pull(t.Context(), client, host+"/small:1", "s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t.Context(), client, host+"/large:1", "l"); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a pull onto a full disk: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(entries) != 0 {
		t.Errorf("tmp holds %v, %v", entries, err)
	}
	list, err := client.ListImages(t.Context(), connect.NewRequest(&blobdv1.ListImagesRequest{}))
	if err != nil || len(list.Msg.Images) != 1 || list.Msg.Images[0].Digest != done.Image.Digest {
		t.Errorf("images afterwards: %v, %v", list, err)
	}
}

func TestImportCollectAndRefusals(t *testing.T) {
	client := start(t, t.TempDir())
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	importDir := func(path, lease string) (*blobdv1.PullResponse, error) {
		stream, err := client.Import(t.Context(), connect.NewRequest(&blobdv1.ImportRequest{Path: path, LeaseId: lease,
			Format: blobdv1.ImportRequest_FORMAT_DIRECTORY, Config: &blobdv1.ImageConfig{User: "me"}}))
		return last(stream, err)
	}
	one, err := importDir(dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	again, err := importDir(dir, "two")
	if err != nil || again.Image.Digest != one.Image.Digest || one.Image.Config.User != "me" {
		t.Errorf("imported again: %v, first %v, %v", again, one, err)
	}
	for _, c := range []struct {
		path, lease string
		want        connect.Code
	}{{"relative", "l", connect.CodeInvalidArgument}, {dir, "", connect.CodeInvalidArgument},
		{filepath.Join(dir, "none"), "l", connect.CodeNotFound}, {filepath.Join(dir, "f"), "l", connect.CodeInvalidArgument}} {
		if _, err := importDir(c.path, c.lease); connect.CodeOf(err) != c.want {
			t.Errorf("import of %q for %q: %v, want %v", c.path, c.lease, err, c.want)
		}
	}
	collect := func() []string {
		got, err := client.Collect(t.Context(), connect.NewRequest(&blobdv1.CollectRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		return got.Msg.Digests
	}
	if got := collect(); len(got) != 0 {
		t.Errorf("collected %v under two leases", got)
	}
	releaseAll(t, client)
	if got := collect(); len(got) != 1 {
		t.Errorf("collected %v", got)
	}
	if _, err := client.GetImage(t.Context(), connect.NewRequest(&blobdv1.GetImageRequest{Digest: one.Image.Digest})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("collected image: %v", err)
	}
}
