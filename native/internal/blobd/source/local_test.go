package source

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/rootfs"
	"aenv/native/internal/blobd/tartest"
)

func roomy(int64) error { return nil }

func writeFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// readLayers reads all and names what the layers hold, one string each.
func readLayers(t *testing.T, image *Image) (layers []string, err error) {
	t.Helper()
	for i, input := range image.Layers {
		spool, err := rootfs.NewSpool(filepath.Join(t.TempDir(), fmt.Sprint(i)), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer spool.Close()
		layer, err := input.Read(t.Context(), spool, rootfs.NewBudget(rootfs.DefaultLimits), func(int64) {})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, entry := range layer.Entries {
			names = append(names, entry.Path)
		}
		layers = append(layers, strings.Join(names, " "))
	}
	return layers, nil
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	// Two members: that is one gzip stream, too.
	for _, part := range [][]byte{data[:len(data)/2], data[len(data)/2:]} {
		w := gzip.NewWriter(&out)
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func zstandard(t *testing.T, data []byte) []byte {
	t.Helper()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	skippable := []byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'x', 'y', 'z'}
	return encoder.EncodeAll(data, skippable)
}

func TestRootfsTarHasOneDigestHoweverItIsCompressed(t *testing.T) {
	// A root file system's tar means `.wh.` names as they stand.
	raw := tartest.Tar(t, tartest.File("a", "1"), tartest.Whiteout(".wh.a"))
	digests := map[string]bool{}
	for _, data := range [][]byte{raw, gzipped(t, raw), zstandard(t, raw)} {
		image, err := RootfsTar(writeFile(t, data), Config{User: "u"})
		if err != nil {
			t.Fatal(err)
		}
		if layers, err := readLayers(t, image); err != nil || layers[0] != "a .wh.a" {
			t.Errorf("got %q, %v", layers, err)
		}
		digests[image.ContentDigest()] = true
	}
	other, err := RootfsTar(writeFile(t, raw), Config{User: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readLayers(t, other); err != nil {
		t.Fatal(err)
	}
	if len(digests) != 1 || digests[other.ContentDigest()] {
		t.Errorf("digests %v, with another configuration %s", digests, other.ContentDigest())
	}
	damaged := gzipped(t, raw)
	damaged[len(damaged)-6] ^= 1
	image, err := RootfsTar(writeFile(t, damaged), Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readLayers(t, image); fault.KindOf(err) != fault.Invalid {
		t.Errorf("wrong checksum at the end: %v", err)
	}
}

func TestDirectoryDigestFollowsContent(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	digest := func() string {
		image, err := Directory(dir, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if layers, err := readLayers(t, image); err != nil || layers[0] != " f g" {
			t.Fatalf("got %q, %v", layers, err)
		}
		return image.ContentDigest()
	}
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(file, filepath.Join(dir, "g")); err != nil {
		t.Fatal(err)
	}
	first, again := digest(), digest()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if changed := digest(); first != again || first == changed {
		t.Errorf("digests %s, again %s, changed %s", first, again, changed)
	}
}

// dockerArchive writes a `docker save` file of two layers of the same content, the second a link to the first.
func dockerArchive(t *testing.T, linkTarget, diffID string) []byte {
	t.Helper()
	layer := string(tartest.Tar(t, tartest.File("a", "1")))
	if diffID == "" {
		sum := sha256.Sum256([]byte(layer))
		diffID = "sha256:" + hex.EncodeToString(sum[:])
	}
	config := fmt.Sprintf(`{"architecture":"amd64","os":"linux","config":{"User":"u"},"rootfs":{"type":"layers","diff_ids":[%q,%q]}}`, diffID, diffID)
	manifest, err := json.Marshal([]map[string]any{{"Config": "c.json", "Layers": []string{"one/layer.tar", "two/layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	return tartest.Tar(t, []tar.Header{tartest.Symlink("two/layer.tar", linkTarget), tartest.File("one/layer.tar", layer),
		tartest.File("c.json", config), tartest.File("manifest.json", string(manifest))}...)
}

func TestDockerArchives(t *testing.T) {
	good := dockerArchive(t, "../one/layer.tar", "")
	for name, data := range map[string][]byte{"plain": good, "gzip": gzipped(t, good)} {
		image, closeArchive, err := DockerArchive(writeFile(t, data), t.TempDir(), roomy)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if layers, err := readLayers(t, image); err != nil || len(layers) != 2 || layers[1] != "a" || image.Config.User != "u" {
			t.Errorf("%s: got %q, %+v, %v", name, layers, image.Config, err)
		}
		if err := closeArchive(); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := DockerArchive(writeFile(t, dockerArchive(t, "../none", "")), t.TempDir(), roomy); fault.KindOf(err) != fault.Invalid ||
		!strings.Contains(err.Error(), "two/layer.tar") {
		t.Errorf("layer that leads nowhere: %v", err)
	}
	image, closeArchive, err := DockerArchive(writeFile(t, dockerArchive(t, "../one/layer.tar", "sha256:"+strings.Repeat("0", 64))), t.TempDir(), roomy)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readLayers(t, image); fault.KindOf(err) != fault.Invalid {
		t.Errorf("layer that is not what its digest says: %v", err)
	}
	if err := closeArchive(); err != nil {
		t.Error(err)
	}
}

func TestOCILayouts(t *testing.T) {
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	layer := tartest.Layer(t, tartest.Tar(t, tartest.File("a", "1")))
	if err := path.AppendImage(tartest.Image(t, layer)); err != nil {
		t.Fatal(err)
	}
	image, err := OCILayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	if layers, err := readLayers(t, image); err != nil || layers[0] != "a" || image.Config.WorkingDir != "/w" {
		t.Errorf("got %q, %+v, %v", layers, image.Config, err)
	}
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "blobs", "sha256", digest.Hex)
	if err := os.WriteFile(blob, gzipped(t, tartest.Tar(t, tartest.File("b", "1"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readLayers(t, image); fault.KindOf(err) != fault.Invalid {
		t.Errorf("layer that is not what its digest says: %v", err)
	}
	if _, err := OCILayout(t.TempDir()); fault.KindOf(err) != fault.NotFound {
		t.Errorf("empty directory: %v", err)
	}
}
