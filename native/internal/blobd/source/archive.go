package source

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
	"aenv/native/internal/blobd/rootfs"
)

const (
	maxArchiveEntries = 100_000
	// maxArchiveNameBytes is of all members' names and links together.
	maxArchiveNameBytes = 16 << 20
	maxArchiveLinks     = 8
	unpackStepBytes     = 1 << 20
)

// archive is a `docker save` file, indexed by name.
type archive struct {
	path string
	file *os.File
	// sections of regular members, links of symbolic and hard links.
	sections map[string]section
	links    map[string]string
}

type section struct{ offset, size int64 }

// DockerArchive is a `docker save` file with one image, plain or compressed as a whole (then unpacked into dir first, while
// room allows). It
// has no registry manifest, so its digest is the image id: that of its configuration, which names the layers' digests.
// The caller calls close when it is done with the image.
func DockerArchive(path, dir string, room func(bytes int64) error) (image *Image, closeArchive func() error, err error) {
	a, err := openArchive(path, dir, room)
	if err != nil {
		return nil, nil, err
	}
	if image, err = a.image(); err != nil {
		return nil, nil, errors.Join(err, a.file.Close())
	}
	return image, a.file.Close, nil
}

func openArchive(path, dir string, room func(bytes int64) error) (*archive, error) {
	file, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	if file, err = plainFile(file, dir, room); err != nil {
		return nil, err
	}
	a := &archive{path: path, file: file, sections: map[string]section{}, links: map[string]string{}}
	if err := a.index(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return a, nil
}

// plainFile gives the file itself, or what a compressed one holds, unpacked into dir; members are read out of order.
func plainFile(file *os.File, dir string, room func(bytes int64) error) (*os.File, error) {
	head := make([]byte, 512)
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, file.Close())
	}
	if !rootfs.IsCompressed(head[:n]) {
		return file, nil
	}
	defer file.Close()
	plain, err := rootfs.Decompress(file)
	if err != nil {
		return nil, asInvalid(err)
	}
	defer plain.Close()
	unpacked, err := os.OpenFile(filepath.Join(dir, "archive.tar"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unpack(unpacked, plain, room); err != nil {
		return nil, errors.Join(fmt.Errorf("unpack %s: %w", file.Name(), err), unpacked.Close())
	}
	return unpacked, nil
}

// unpack copies as much as one image may hold; its archive is hardly larger than its layers.
func unpack(to io.Writer, plain io.Reader, room func(bytes int64) error) error {
	limit := rootfs.DefaultLimits.DataBytes
	for total := int64(0); total <= limit; total += unpackStepBytes {
		if err := room(unpackStepBytes); err != nil {
			return err
		}
		if _, err := io.CopyN(to, plain, unpackStepBytes); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return fault.New(fault.Invalid, "it holds more than %d GiB, which is the limit; save a smaller image", limit>>30)
}

func (a *archive) index() error {
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	reader := tar.NewReader(a.file)
	nameBytes := 0
	for count := 0; ; count++ {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return fault.Wrap(fault.Invalid, err, "%s is no tar, or a damaged one", a.path)
		}
		if count == maxArchiveEntries {
			return fault.New(fault.Invalid, "%s has more than %d members", a.path, maxArchiveEntries)
		}
		if nameBytes += len(header.Name) + len(header.Linkname); nameBytes > maxArchiveNameBytes {
			return fault.New(fault.Invalid, "the names of the members of %s have more than %d bytes together; it is no archive of `docker save`", a.path, maxArchiveNameBytes)
		}
		name := path.Clean("/" + header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			offset, err := a.file.Seek(0, io.SeekCurrent)
			if err != nil {
				return err
			}
			a.sections[name] = section{offset, header.Size}
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), header.Linkname)
		case tar.TypeLink:
			a.links[name] = path.Clean("/" + header.Linkname)
		}
	}
}

// open finds a member, through links (a layer that repeats is stored once and linked).
func (a *archive) open(name string) (*io.SectionReader, error) {
	at := path.Clean("/" + name)
	for range maxArchiveLinks {
		if found, ok := a.sections[at]; ok {
			return io.NewSectionReader(a.file, found.offset, found.size), nil
		}
		next, ok := a.links[at]
		if !ok {
			break
		}
		at = next
	}
	return nil, fault.New(fault.Invalid, "%s has no member %q, which it needs", a.path, name)
}

// read gives a small member whole.
func (a *archive) read(name string, limit int) (raw []byte, err error) {
	member, err := a.open(name)
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%s in %s", name, a.path)
	if member.Size() > int64(limit) {
		return nil, tooLarge(what, limit)
	}
	if raw, err = io.ReadAll(member); err != nil {
		return nil, err
	}
	return raw, checkDescription(raw, limit, what)
}

// image reads the archive's own manifest.
func (a *archive) image() (*Image, error) {
	var manifest []struct {
		Config string
		Layers []string
	}
	description, err := a.read("manifest.json", maxManifestBytes)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(description, &manifest); err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "%s: manifest.json", a.path)
	}
	if len(manifest) != 1 {
		return nil, fault.New(fault.Invalid, "%s holds %d images; save one at a time", a.path, len(manifest))
	}
	layers := manifest[0].Layers
	if err := checkLayerCount(len(layers), a.path); err != nil {
		return nil, err
	}
	raw, err := a.read(manifest[0].Config, maxConfigBytes)
	if err != nil {
		return nil, err
	}
	file, err := parseConfig(raw, a.path)
	if err != nil {
		return nil, err
	}
	if len(file.RootFS.DiffIDs) != len(layers) {
		return nil, fault.New(fault.Invalid, "%s: %d layers, but digests of %d", a.path, len(layers), len(file.RootFS.DiffIDs))
	}
	want, err := parsePlatform("")
	if err != nil {
		return nil, err
	}
	platform, err := checkPlatform(file, want, a.path)
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(raw)
	image := &Image{Digest: "sha256:" + hex.EncodeToString(id[:]), Platform: platform, Config: configOf(file)}
	for i, name := range layers {
		input, err := a.input(name, file.RootFS.DiffIDs[i])
		if err != nil {
			return nil, err
		}
		image.Layers = append(image.Layers, input)
	}
	return image, nil
}

func (a *archive) input(name string, plain v1.Hash) (flatten.Input, error) {
	member, err := a.open(name)
	if err != nil {
		return flatten.Input{}, err
	}
	return flatten.Input{ID: plain.String(), SizeBytes: uint64(member.Size()), Read: func(ctx context.Context,
		spool *rootfs.Spool, budget *rootfs.Budget, count func(int64)) (*rootfs.Layer, error) {
		read, err := readTarLayer(ctx, member, expectation{plain: &plain}, spool, budget, rootfs.TarOptions{Whiteouts: true}, count)
		return read, damagedFile(err, a.path)
	}}, nil
}
