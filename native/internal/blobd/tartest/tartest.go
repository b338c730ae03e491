// Package tartest writes small tars and images for blobd's tests.
package tartest

import (
	"archive/tar"
	"bytes"
	"io"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Mtime of every entry that sets none.
var Mtime = time.Unix(1_600_000_000, 0)

// File is a regular file.
func File(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)),
		PAXRecords: map[string]string{contentRecord: content}}
}

// Dir is a directory.
func Dir(name string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}
}

// Symlink points name to target.
func Symlink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

// Link is a hard link from name to target.
func Link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
}

// Whiteout is the marker file that removes something.
func Whiteout(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }

// contentRecord carries a file's content from File to Tar; it is not written.
const contentRecord = "AENV.content"

// Tar writes entries as they are; what File put in is their data.
func Tar(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		content := h.PAXRecords[contentRecord]
		delete(h.PAXRecords, contentRecord)
		if h.ModTime.IsZero() {
			h.ModTime = Mtime
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// RawTar is the header of one entry, whatever size it claims, and nothing behind it.
func RawTar(t testing.TB, h tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	h.ModTime, h.Format, h.PAXRecords = Mtime, tar.FormatUnknown, nil
	if err := tar.NewWriter(&out).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Layer is a tar as a gzip image layer.
func Layer(t testing.TB, tarBytes []byte) v1.Layer {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tarBytes)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

// RawLayer is a layer of just these bytes under a media type.
func RawLayer(stored []byte, kind types.MediaType) v1.Layer { return static.NewLayer(stored, kind) }

// Image stacks layers, with a configuration for linux/amd64 that has some of everything.
func Image(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config = v1.Config{Env: []string{"A=1"}, Entrypoint: []string{"/e"}, Cmd: []string{"c"}, User: "u", WorkingDir: "/w"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}
