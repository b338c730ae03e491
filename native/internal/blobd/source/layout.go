package source

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
	"aenv/native/internal/blobd/rootfs"
)

// OCILayout is an image layout directory; of several images the one for this machine's platform is taken.
func OCILayout(path string) (*Image, error) {
	want, err := parsePlatform("")
	if err != nil {
		return nil, err
	}
	if err := checkFileSize(filepath.Join(path, "index.json"), maxManifestBytes); err != nil {
		return nil, layoutError(path, err)
	}
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, layoutError(path, err)
	}
	descriptor, index, err := findInLayout(index, want, path)
	if err != nil {
		return nil, err
	}
	image, err := index.Image(descriptor.Digest)
	if err != nil {
		return nil, layoutError(path, err)
	}
	file, err := layoutConfig(image, descriptor.Digest, path)
	if err != nil {
		return nil, layoutError(path, err)
	}
	platform, err := checkPlatform(file, want, path)
	if err != nil {
		return nil, err
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, layoutError(path, err)
	}
	loaded := &Image{Digest: descriptor.Digest.String(), Platform: platform, Config: configOf(file)}
	for _, layer := range layers {
		input, err := layoutInput(layer, path)
		if err != nil {
			return nil, err
		}
		loaded.Layers = append(loaded.Layers, input)
	}
	return loaded, nil
}

// layoutConfig reads an image's manifest and configuration, whose sizes and digests nobody has checked yet.
func layoutConfig(image v1.Image, digest v1.Hash, path string) (*v1.ConfigFile, error) {
	if err := checkBlobSize(path, digest, maxManifestBytes); err != nil {
		return nil, err
	}
	rawManifest, err := image.RawManifest()
	if err != nil {
		return nil, err
	}
	what := "the manifest of " + path
	if err := errors.Join(checkDescription(rawManifest, maxManifestBytes, what), checkDigest(rawManifest, digest, what)); err != nil {
		return nil, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	if err := checkManifest(manifest, path); err != nil {
		return nil, err
	}
	if err := checkBlobSize(path, manifest.Config.Digest, maxConfigBytes); err != nil {
		return nil, err
	}
	raw, err := image.RawConfigFile()
	if err != nil {
		return nil, err
	}
	if err := checkDigest(raw, manifest.Config.Digest, "the configuration of "+path); err != nil {
		return nil, err
	}
	return parseConfig(raw, path)
}

func checkBlobSize(path string, digest v1.Hash, limit int) error {
	return checkFileSize(filepath.Join(path, "blobs", digest.Algorithm, digest.Hex), limit)
}

func checkFileSize(path string, limit int) error {
	info, err := os.Stat(path)
	if err == nil && info.Size() > int64(limit) {
		return tooLarge(path, limit)
	}
	return err
}

// findInLayout follows indexes down to an image, and gives the index that holds it.
func findInLayout(index v1.ImageIndex, want *v1.Platform, path string) (v1.Descriptor, v1.ImageIndex, error) {
	for range maxIndexDepth {
		raw, err := index.RawManifest()
		if err != nil {
			return v1.Descriptor{}, nil, layoutError(path, err)
		}
		if err := checkDescription(raw, maxManifestBytes, "the index of "+path); err != nil {
			return v1.Descriptor{}, nil, err
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return v1.Descriptor{}, nil, layoutError(path, err)
		}
		chosen, err := choose(manifest, want, path)
		if err != nil || chosen.MediaType.IsImage() {
			return chosen, index, err
		}
		if err := checkBlobSize(path, chosen.Digest, maxManifestBytes); err != nil {
			return v1.Descriptor{}, nil, layoutError(path, err)
		}
		if index, err = index.ImageIndex(chosen.Digest); err != nil {
			return v1.Descriptor{}, nil, layoutError(path, err)
		}
	}
	return v1.Descriptor{}, nil, fault.New(fault.Invalid, "%s: index within index within index", path)
}

func layoutInput(layer v1.Layer, path string) (flatten.Input, error) {
	digest, err := layer.Digest()
	if err != nil {
		return flatten.Input{}, layoutError(path, err)
	}
	size, err := layer.Size()
	if err != nil {
		return flatten.Input{}, layoutError(path, err)
	}
	return flatten.Input{ID: digest.String(), SizeBytes: uint64(max(size, 0)), Read: func(ctx context.Context,
		spool *rootfs.Spool, budget *rootfs.Budget, count func(int64)) (*rootfs.Layer, error) {
		stored, err := layer.Compressed()
		if err != nil {
			return nil, layoutError(path, err)
		}
		defer stored.Close()
		read, err := readTarLayer(ctx, stored, expectation{stored: &digest}, spool, budget, rootfs.TarOptions{Whiteouts: true}, count)
		return read, damagedFile(err, path)
	}}, nil
}

// damagedFile: in a file of this machine, bytes that do not match their digest will not match it next time either.
func damagedFile(err error, path string) error {
	var transfer *transferError
	if errors.As(err, &transfer) {
		return fault.Wrap(fault.Invalid, transfer.cause, "%s is damaged", path)
	}
	return err
}

func layoutError(path string, err error) error {
	var named *fault.Error
	if errors.As(err, &named) {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(fault.NotFound, err, "%s is no complete OCI layout", path)
	}
	return fault.Wrap(fault.Invalid, err, "%s is no valid OCI layout", path)
}
