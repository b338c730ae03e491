package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/rootfs"
	"aenv/native/internal/blobd/tartest"
)

// serve starts a registry; tamper, when set, may answer a request instead of it (and says so).
func serve(t *testing.T, tamper *func(http.ResponseWriter, *http.Request) bool) (host string) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tamper == nil || *tamper == nil || !(*tamper)(w, r) {
			inner.ServeHTTP(w, r)
		}
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

func quickRegistry() *Registry {
	r := NewRegistry()
	r.backoff = time.Millisecond
	return r
}

// fetchAll resolves, loads and reads all layers, and gives the paths of the last.
func fetchAll(t *testing.T, r *Registry, reference string, options PullOptions) (paths []string, err error) {
	t.Helper()
	ref, err := r.Parse(reference, options)
	if err != nil {
		return nil, err
	}
	digest, err := ref.Resolve(t.Context())
	if err != nil {
		return nil, err
	}
	image, err := ref.Load(t.Context(), digest)
	if err != nil {
		return nil, err
	}
	for i, layer := range image.Layers {
		spool, err := rootfs.NewSpool(filepath.Join(t.TempDir(), fmt.Sprint(i)), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer spool.Close()
		counted := int64(0)
		read, err := layer.Read(t.Context(), spool, rootfs.NewBudget(rootfs.DefaultLimits), func(n int64) { counted += n })
		if err != nil {
			return nil, err
		}
		if counted != int64(layer.SizeBytes) {
			t.Errorf("progress counted %d bytes of %d", counted, layer.SizeBytes)
		}
		paths = nil
		for _, entry := range read.Entries {
			paths = append(paths, entry.Path)
		}
	}
	return paths, nil
}

func TestRegistryAnswersBecomeKinds(t *testing.T) {
	var tamper func(http.ResponseWriter, *http.Request) bool
	host := serve(t, &tamper)
	push(t, host+"/x:1", tartest.Image(t))
	for status, want := range map[int]fault.Kind{401: fault.Unauthenticated, 403: fault.Denied, 404: fault.NotFound,
		429: fault.Unavailable, 500: fault.Unavailable} {
		tamper = func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.WriteHeader(status)
			return true
		}
		_, err := fetchAll(t, quickRegistry(), host+"/x:1", PullOptions{Username: "me", Password: "s3cret"})
		if fault.KindOf(err) != want || !strings.Contains(err.Error(), host) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("status %d: kind %v of %v; want kind %v and the registry's name", status, fault.KindOf(err), err, want)
		}
	}
	tamper = nil
	if _, err := fetchAll(t, quickRegistry(), host+"/none:1", PullOptions{}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("unknown image: %v", err)
	}
	if _, err := fetchAll(t, quickRegistry(), "127.0.0.1:1/x", PullOptions{}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("no registry there: %v", err)
	}
	for _, reference := range []string{"", "UPPER", "a/b@sha256:../../x", "x:y:z"} {
		if _, err := quickRegistry().Parse(reference, PullOptions{}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("reference %q: %v", reference, err)
		}
	}
}

func TestBrokenDownloadsBeginAgain(t *testing.T) {
	var tamper func(http.ResponseWriter, *http.Request) bool
	host := serve(t, &tamper)
	layer := tartest.Layer(t, tartest.Tar(t, tartest.File("f", strings.Repeat("data", 100_000))))
	push(t, host+"/x:1", tartest.Image(t, layer))
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	size, err := layer.Size()
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	tamper = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digest.String()) {
			return false
		}
		switch asked.Add(1) {
		case 1: // Says how long it is, and stops early.
			w.Header().Set("Content-Length", fmt.Sprint(size))
			_, _ = w.Write([]byte{0x1f, 0x8b, 8})
		case 2: // Complete, and wrong.
			_, _ = w.Write(make([]byte, size))
		case 3: // Asks for patience.
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			return false
		}
		return true
	}
	if paths, err := fetchAll(t, quickRegistry(), host+"/x:1", PullOptions{}); err != nil || len(paths) != 1 {
		t.Errorf("got %v, %v", paths, err)
	}
	if asked.Load() != 4 {
		t.Errorf("the blob was asked for %d times, want 4", asked.Load())
	}
	tamper = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digest.String()) {
			return false
		}
		_, _ = w.Write(make([]byte, size))
		return true
	}
	if _, err := fetchAll(t, quickRegistry(), host+"/x:1", PullOptions{}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a blob that is always wrong: %v", err)
	}
}

func TestAnIndexGivesTheImageOfThePlatform(t *testing.T) {
	host := serve(t, nil)
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: platformImage(t, "arm64"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}}},
		mutate.IndexAddendum{Add: platformImage(t, "amd64"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	ref, err := name.ParseReference(host + "/multi:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"arm64", "amd64"} {
		paths, err := fetchAll(t, quickRegistry(), host+"/multi:1", PullOptions{Platform: "linux/" + arch})
		if err != nil || len(paths) != 1 || paths[0] != arch {
			t.Errorf("%s: got %v, %v", arch, paths, err)
		}
	}
	if _, err := fetchAll(t, quickRegistry(), host+"/multi:1", PullOptions{Platform: "linux/riscv64"}); fault.KindOf(err) != fault.NotFound ||
		!strings.Contains(err.Error(), "linux/amd64") {
		t.Errorf("a platform the index lacks: %v", err)
	}
	if _, err := quickRegistry().Parse("x", PullOptions{Platform: "amd64"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("half a platform: %v", err)
	}
}

func platformImage(t *testing.T, arch string) v1.Image {
	t.Helper()
	image := tartest.Image(t, tartest.Layer(t, tartest.Tar(t, tartest.File(arch, ""))))
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.Architecture = arch
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

func TestPlainHTTPOnlyWhereAllowed(t *testing.T) {
	reached := errors.New("reached")
	inner := roundTripper(func(*http.Request) (*http.Response, error) { return nil, reached })
	guard := &plainHTTPGuard{inner: inner, registry: "r.example", allowed: "r.example"}
	for url, want := range map[string]bool{"https://any.example/": true, "http://127.0.0.1:5000/": true, "http://[::1]/": true,
		"http://localhost:5000/": true, "http://r.example:80/": true, "http://10.0.0.1/": false, "http://other.example/": false} {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := guard.RoundTrip(request); errors.Is(err, reached) != want {
			t.Errorf("%s: %v, want allowed = %v", url, err, want)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRetryAfter(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{"7": 7 * time.Second, "99999": maxRetryAfter,
		now.Add(5 * time.Second).Format(http.TimeFormat): 5 * time.Second, now.Add(-time.Hour).Format(http.TimeFormat): 0} {
		if got, asked := retryAfter(value, now); got != want || !asked {
			t.Errorf("%q: %v, %v; want %v", value, got, asked, want)
		}
	}
	if _, asked := retryAfter("", now); asked {
		t.Error("no header, yet a wait was found")
	}
}
