package source

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/rootfs"
	"aenv/native/internal/blobd/tartest"
)

const (
	anyDigest  = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	ociConfig  = `{"mediaType":"application/vnd.oci.image.config.v1+json","size":%d,"digest":"` + anyDigest + `"}`
	ociLayer   = `{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","size":%d,"digest":"` + anyDigest + `"}`
	ociHead    = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":`
	ociNoLayer = `,"layers":[`
)

// endless sends a text for ever, or until the reader has enough.
func endless(w io.Writer, text string) {
	for {
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
	}
}

func TestManifestsThatClaimTooMuchAreRefusedUnread(t *testing.T) {
	layers := func(count int) string {
		return strings.TrimSuffix(strings.Repeat(fmt.Sprintf(ociLayer, 1)+",", count), ",")
	}
	for name, c := range map[string]struct {
		manifest string
		forever  string
		want     string
	}{
		"large configuration":       {ociHead + fmt.Sprintf(ociConfig, int64(17<<20)) + ociNoLayer + "]}", "", "configuration of"},
		"configuration of any size": {ociHead + fmt.Sprintf(ociConfig, -1) + ociNoLayer + "]}", "", "configuration of"},
		"layer of any size":         {ociHead + fmt.Sprintf(ociConfig, 2) + ociNoLayer + fmt.Sprintf(ociLayer, -1) + "]}", "", "layer 1 of 1"},
		"many layers":               {ociHead + fmt.Sprintf(ociConfig, 2) + ociNoLayer + layers(513) + "]}", "", "513 layers"},
		"manifest without end":      {ociHead, strings.Repeat(" ", 1000), fmt.Sprint(maxManifestBytes)},
		"tiny layers without end":   {ociHead + fmt.Sprintf(ociConfig, 2) + ociNoLayer, strings.Repeat("{},", 1000), "parts"},
	} {
		t.Run(name, func(t *testing.T) {
			var blobs atomic.Int32
			tamper := func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, "/blobs/") {
					blobs.Add(1)
				}
				// Redirected, it is the manifest still.
				if strings.Contains(r.URL.Path, "/manifests/") {
					http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
				} else if r.URL.Path == "/elsewhere" {
					w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
					_, _ = io.WriteString(w, c.manifest)
					if c.forever != "" {
						endless(w, c.forever)
					}
				} else {
					return false
				}
				return true
			}
			host := serve(t, &tamper)
			_, err := fetchAll(t, quickRegistry(), host+"/x:1", PullOptions{})
			if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), host+"/") {
				t.Errorf("got %v; want fault.Invalid, %q and the registry's name", err, c.want)
			}
			if blobs.Load() != 0 {
				t.Errorf("%d blobs were asked for", blobs.Load())
			}
		})
	}
}

func TestConfigurationsThatGrowWhenParsedAreRefused(t *testing.T) {
	for name, raw := range map[string]string{
		"history": `{"history":[` + strings.TrimSuffix(strings.Repeat("{},", 300_000), ",") + `]}`,
		"size":    `{"author":"` + strings.Repeat("a", maxConfigBytes) + `"}`,
		"kept":    `{"config":{"Env":["A=` + strings.Repeat("a", maxKeptConfigBytes) + `"]}}`,
	} {
		if _, err := parseConfig([]byte(raw), "reg.example/x:1"); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "reg.example/x:1") {
			t.Errorf("%s: got %v, want fault.Invalid", name, err)
		}
	}
}

func TestOCILayoutsAreCheckedBeforeTheyAreRead(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string, manifest, config v1.Hash){
		"large manifest": func(t *testing.T, dir string, manifest, _ v1.Hash) {
			truncate(t, filepath.Join(dir, "blobs", "sha256", manifest.Hex), maxManifestBytes+1)
		},
		"large configuration": func(t *testing.T, dir string, _, config v1.Hash) {
			truncate(t, filepath.Join(dir, "blobs", "sha256", config.Hex), maxConfigBytes+1)
		},
		"large index": func(t *testing.T, dir string, _, _ v1.Hash) {
			truncate(t, filepath.Join(dir, "index.json"), maxManifestBytes+1)
		},
		"another manifest": func(t *testing.T, dir string, manifest, _ v1.Hash) {
			overwrite(t, filepath.Join(dir, "blobs", "sha256", manifest.Hex), ociHead+fmt.Sprintf(ociConfig, 2)+ociNoLayer+"]}")
		},
		"another configuration": func(t *testing.T, dir string, _, config v1.Hash) {
			overwrite(t, filepath.Join(dir, "blobs", "sha256", config.Hex), `{"config":{"User":"root"}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, err := layout.Write(dir, empty.Index)
			if err != nil {
				t.Fatal(err)
			}
			image := tartest.Image(t)
			if err := path.AppendImage(image); err != nil {
				t.Fatal(err)
			}
			manifest, err := image.Digest()
			if err != nil {
				t.Fatal(err)
			}
			config, err := image.ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := OCILayout(dir); err != nil {
				t.Fatal(err)
			}
			damage(t, dir, manifest, config)
			if _, err := OCILayout(dir); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v, want fault.Invalid", err)
			}
		})
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestACompressedArchiveIsUnpackedWhileThereIsRoom(t *testing.T) {
	full := fault.New(fault.Exhausted, "the disk is full")
	room := int64(8 << 20)
	dir := t.TempDir()
	_, _, err := DockerArchive(writeFile(t, gzipped(t, make([]byte, 32<<20))), dir, func(bytes int64) error {
		if room -= bytes; room < 0 {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) || fault.KindOf(err) != fault.Exhausted {
		t.Errorf("got %v, want %v", err, full)
	}
	if info, err := os.Stat(filepath.Join(dir, "archive.tar")); err != nil || info.Size() > 8<<20 {
		t.Errorf("%d bytes were written, 8 MiB were allowed (%v)", info.Size(), err)
	}
}

func TestABrokenDownloadCostsTheBudgetNothing(t *testing.T) {
	var entries []tar.Header
	for i := range 1000 {
		entries = append(entries, tartest.File(fmt.Sprint(i), "1"))
	}
	layer := tartest.RawLayer(tartest.Tar(t, entries...), types.OCIUncompressedLayer)
	size, err := layer.Size()
	if err != nil {
		t.Fatal(err)
	}
	var tamper func(http.ResponseWriter, *http.Request) bool
	host := serve(t, &tamper)
	push(t, host+"/x:1", tartest.Image(t, layer))
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	tamper = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, digest.String()) || asked.Add(1) == layerAttempts {
			return false
		}
		stored, err := layer.Compressed()
		if err != nil {
			t.Error(err)
			return false
		}
		defer stored.Close()
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = io.CopyN(w, stored, size*9/10)
		return true
	}
	ref, err := quickRegistry().Parse(host+"/x:1", PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := ref.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	image, err := ref.Load(t.Context(), resolved)
	if err != nil {
		t.Fatal(err)
	}
	spool, err := rootfs.NewSpool(filepath.Join(t.TempDir(), "spool"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	budget := rootfs.NewBudget(rootfs.Limits{MetadataBytes: 512 << 10, DataBytes: 1500})
	if _, err := image.Layers[0].Read(t.Context(), spool, budget, func(int64) {}); err != nil || asked.Load() != layerAttempts {
		t.Errorf("after %d attempts: %v", asked.Load(), err)
	}
}
