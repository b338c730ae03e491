package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"aenv/native/internal/blobd/fault"
)

const (
	maxManifestBytes = 8 << 20
	maxConfigBytes   = 16 << 20
	maxLayers        = 512
	// maxDescriptionCommas bounds what a small text becomes once it is parsed: each `{},` of a list takes some 200 bytes.
	maxDescriptionCommas = 250_000
	// maxKeptConfigBytes is of the part that stays in memory as long as the image is stored. No kernel starts a process
	// with more.
	maxKeptConfigBytes = 1 << 20
	maxOffered         = 20
)

// checkManifest refuses an image by what its manifest claims, before any of that is fetched.
func checkManifest(manifest *v1.Manifest, image string) error {
	if size := manifest.Config.Size; size < 0 || size > maxConfigBytes {
		return fault.New(fault.Invalid, "%s claims a configuration of %d bytes, at most %d are possible; build the image with fewer labels and less history",
			image, size, maxConfigBytes)
	}
	for i, layer := range manifest.Layers {
		if layer.Size < 0 {
			return fault.New(fault.Invalid, "%s claims %d bytes for layer %d of %d; push the image again", image, layer.Size, i+1, len(manifest.Layers))
		}
	}
	return checkLayerCount(len(manifest.Layers), image)
}

func checkLayerCount(count int, image string) error {
	if count > maxLayers {
		return fault.New(fault.Invalid, "%s has %d layers, at most %d are possible; squash some of them", image, count, maxLayers)
	}
	return nil
}

// checkDescription refuses a manifest, index or configuration that is too large to be parsed.
func checkDescription(raw []byte, limit int, what string) error {
	if len(raw) > limit {
		return tooLarge(what, limit)
	}
	if commas := bytes.Count(raw, []byte{','}); commas > maxDescriptionCommas {
		return fault.New(fault.Invalid, "%s has too many parts (%d commas, at most %d are possible); build the image with fewer labels and less history",
			what, commas, maxDescriptionCommas)
	}
	return nil
}

func tooLarge(what string, limit int) error {
	return fault.New(fault.Invalid, "%s has more than the %d bytes that are possible; build the image with fewer labels and less history", what, limit)
}

// checkDigest tells whether raw is what it was promised as.
func checkDigest(raw []byte, want v1.Hash, what string) error {
	if sum := sha256.Sum256(raw); want.Algorithm != "sha256" || hex.EncodeToString(sum[:]) != want.Hex {
		return fault.New(fault.Invalid, "%s is not what its digest %s says; fetch it again", what, want)
	}
	return nil
}

// parseConfig reads an image's configuration.
func parseConfig(raw []byte, image string) (*v1.ConfigFile, error) {
	what := "the configuration of " + image
	if err := checkDescription(raw, maxConfigBytes, what); err != nil {
		return nil, err
	}
	file, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "%s cannot be read", what)
	}
	c := configOf(file)
	kept := len(c.User) + len(c.WorkingDir)
	for _, list := range [][]string{c.Env, c.Entrypoint, c.Cmd} {
		for _, text := range list {
			kept += len(text) + 16
		}
	}
	if kept > maxKeptConfigBytes {
		return nil, fault.New(fault.Invalid, "%s has %d bytes of environment, entry point and command, at most %d are possible; shorten them", what, kept, maxKeptConfigBytes)
	}
	return file, nil
}

// boundManifest lets the body of a registry's answer fail once it is too large for a manifest. Blobs have sizes of their
// own, which the registry client holds them to.
func boundManifest(request *http.Request, response *http.Response) {
	path := firstRequest(request).URL.Path
	if !strings.HasPrefix(path, "/v2/") || !strings.Contains(path, "/manifests/") {
		return
	}
	response.Body = &boundedManifest{ReadCloser: response.Body, what: "the manifest " + request.URL.Host + path}
}

// firstRequest is what was asked for before redirects led elsewhere.
func firstRequest(request *http.Request) *http.Request {
	for request.Response != nil && request.Response.Request != nil {
		request = request.Response.Request
	}
	return request
}

type boundedManifest struct {
	io.ReadCloser
	what         string
	size, commas int
}

func (b *boundedManifest) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.size += n
	b.commas += bytes.Count(p[:n], []byte{','})
	switch {
	case b.size > maxManifestBytes:
		return 0, tooLarge(b.what, maxManifestBytes)
	case b.commas > maxDescriptionCommas:
		return 0, fault.New(fault.Invalid, "%s has too many parts (more than %d commas); build the image with fewer layers and annotations", b.what, maxDescriptionCommas)
	}
	return n, err
}
