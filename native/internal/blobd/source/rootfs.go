package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
	"aenv/native/internal/blobd/rootfs"
)

// contentDigest names an imported root file system: over its configuration and its content.
type contentDigest struct {
	sum    hash.Hash
	config Config
}

func newContentDigest(kind string, config Config) (*contentDigest, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	d := &contentDigest{sum: sha256.New(), config: config}
	fmt.Fprintf(d.sum, "aenv root file system 1\n%s\n%s\n", kind, text)
	return d, nil
}

func (d *contentDigest) String() string { return "sha256:" + hex.EncodeToString(d.sum.Sum(nil)) }

func (d *contentDigest) image(layer flatten.Input) *Image {
	return &Image{ContentDigest: d.String, Platform: HostPlatform(), Config: d.config, Layers: []flatten.Input{layer}}
}

// RootfsTar is the tar of a root file system, plain or compressed with gzip or zstd. Its digest is over the plain
// stream, so that compressing it differently makes no new image.
func RootfsTar(path string, config Config) (*Image, error) {
	file, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	size, err := sizeAndClose(file)
	if err != nil {
		return nil, err
	}
	digest, err := newContentDigest("tar", config)
	if err != nil {
		return nil, err
	}
	return digest.image(flatten.Input{ID: path, SizeBytes: size, Read: func(ctx context.Context, spool *rootfs.Spool,
		budget *rootfs.Budget, count func(int64)) (*rootfs.Layer, error) {
		file, err := openRegular(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in := &arrival{in: file, sum: noHash{}, count: count}
		plain, err := rootfs.Decompress(in)
		if err != nil {
			return nil, asInvalid(err)
		}
		defer plain.Close()
		tee := io.TeeReader(plain, digest.sum)
		layer, err := rootfs.ReadTar(ctx, tee, spool, budget, rootfs.TarOptions{})
		if err == nil {
			_, err = io.Copy(io.Discard, tee)
		}
		if err != nil && !rootfs.IsLocal(err) && ctx.Err() == nil {
			err = asInvalid(err)
		}
		return layer, err
	}}), nil
}

// Directory is a directory of this machine, taken as a root file system.
func Directory(path string, config Config) (*Image, error) {
	digest, err := newContentDigest("directory", config)
	if err != nil {
		return nil, err
	}
	return digest.image(flatten.Input{ID: path, Read: func(ctx context.Context, spool *rootfs.Spool,
		budget *rootfs.Budget, _ func(int64)) (*rootfs.Layer, error) {
		return rootfs.ReadDirectory(ctx, path, spool, budget, digest.sum)
	}}), nil
}

// openRegular looks before it opens: opening a pipe would wait for its writer.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.Wrap(fault.NotFound, err, "cannot import")
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fault.New(fault.Invalid, "%s is not a file", path)
	}
	return os.Open(path)
}

func sizeAndClose(file *os.File) (uint64, error) {
	info, err := file.Stat()
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	return uint64(info.Size()), nil
}
