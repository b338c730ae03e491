package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// noise is the size of each file of random bytes.
const noise = 16 << 20

// entry is one member of a layer. Its bytes are content, or size bytes that seed determines.
type entry struct {
	tar.Header
	content []byte
	seed    byte
}

func file(name, content string) entry {
	return entry{Header: tar.Header{Name: name, Mode: 0o644}, content: []byte(content)}
}

func random(name string, seed byte) entry {
	return entry{Header: tar.Header{Name: name, Mode: 0o644, Size: noise}, seed: seed}
}

func dir(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func (e entry) bytes() io.Reader {
	if e.content != nil || e.Size == 0 {
		return strings.NewReader(string(e.content))
	}
	return io.LimitReader(rand.NewChaCha8([32]byte{e.seed}), e.Size)
}

// bigImage stacks layers that add, replace, remove and hide files on a root file system. sums are the SHA-256 of the files
// of random bytes that must be left.
func bigImage(rootfs string) (image v1.Image, sums map[string]string, err error) {
	base, err := tarball.LayerFromFile(rootfs, tarball.WithCompressionLevel(gzip.NoCompression))
	if err != nil {
		return nil, nil, err
	}
	id, err := readMember(rootfs, "usr/bin/id")
	if err != nil {
		return nil, nil, err
	}
	kept := []entry{random("opt/kept.bin", 1), random("opt/back.bin", 2), random("opt/hidden/new.bin", 3)}
	layers := [][]entry{
		{dir("opt"), file("opt/removed", "x"), random("opt/back.bin", 9), file("opt/replaced", "old"), dir("opt/hidden"),
			file("opt/hidden/old", "x"), dir("opt/hidden/deep"), file("opt/hidden/deep/old", "x"), dir("opt/tree"), file("opt/tree/leaf", "x")},
		{kept[0], file("opt/.wh.removed", ""), file("opt/.wh.back.bin", ""), file("opt/.wh.tree", "")},
		{dir("opt/hidden"), file("opt/hidden/.wh..wh..opq", ""), kept[2]},
		{kept[1], file("opt/replaced", "new"), file("opt/tree", "a file now")},
		{{Header: tar.Header{Name: "opt/owned", Mode: 0o640, Uid: 1234, Gid: 5678}, content: []byte("x")},
			{Header: tar.Header{Name: "opt/id", Mode: 0o4755}, content: id},
			{Header: tar.Header{Typeflag: tar.TypeLink, Name: "opt/same", Linkname: "opt/replaced"}},
			{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "opt/link", Linkname: "kept.bin", Mode: 0o777}}},
	}
	all := []v1.Layer{base}
	for _, entries := range layers {
		layer, err := layerOf(entries)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, layer)
	}
	sums = map[string]string{}
	for _, e := range kept {
		sum := sha256.New()
		if _, err := io.Copy(sum, e.bytes()); err != nil {
			return nil, nil, err
		}
		sums["/"+e.Name] = hex.EncodeToString(sum.Sum(nil))
	}
	image, err = imageOf(v1.Config{User: "user", WorkingDir: "/opt", Env: []string{"FROM_IMAGE=yes"}}, all...)
	return image, sums, err
}

// programImage holds this program as /app and nothing else.
func programImage() (v1.Image, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	layer, err := layerOf([]entry{{Header: tar.Header{Name: "app", Mode: 0o755}, content: program}})
	if err != nil {
		return nil, err
	}
	return imageOf(v1.Config{Entrypoint: []string{"/app"}}, layer)
}

func imageOf(config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	whole, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	whole = whole.DeepCopy()
	whole.OS, whole.Architecture, whole.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(image, whole)
}

// layerOf makes a layer whose bytes are made anew each time it is read. It is not compressed: random bytes cannot be.
func layerOf(entries []entry) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(writeTar(writer, entries)) }()
		return reader, nil
	}, tarball.WithCompressionLevel(gzip.NoCompression))
}

func writeTar(out io.Writer, entries []entry) error {
	w := tar.NewWriter(out)
	for _, e := range entries {
		header := e.Header
		header.ModTime = time.Unix(1_600_000_000, 0)
		if e.content != nil {
			header.Size = int64(len(e.content))
		}
		if err := w.WriteHeader(&header); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		if _, err := io.Copy(w, e.bytes()); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return w.Close()
}

// readMember reads one file of a tar.
func readMember(path, name string) (content []byte, err error) {
	archive, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	for r := tar.NewReader(archive); ; {
		header, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("%s in %s: %w", name, path, err)
		}
		if strings.TrimPrefix(header.Name, "./") == name {
			return io.ReadAll(r)
		}
	}
}
