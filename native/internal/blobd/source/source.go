// Package source finds images in registries, archives and directories, and tells how to read their layers. Everything
// read is checked against the digest it was promised under.
package source

import (
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
)

// Config is the part of an image's configuration that matters to who runs it.
type Config struct {
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	User       string   `json:"user,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
}

// Image is an image that can be read once.
type Image struct {
	// Digest names the image, `sha256:…`. It is empty for imported root file systems: those are named by what they hold,
	// which ContentDigest tells once all layers are read.
	Digest        string
	ContentDigest func() string
	Platform      string
	Config        Config
	// Layers, lowest first.
	Layers []flatten.Input
}

func configOf(file *v1.ConfigFile) Config {
	c := file.Config
	return Config{Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, User: c.User, WorkingDir: c.WorkingDir}
}

// HostPlatform is this machine's, as images name it.
func HostPlatform() string { return "linux/" + runtime.GOARCH }

// parsePlatform reads `os/arch[/variant]`; empty is this machine's.
func parsePlatform(text string) (*v1.Platform, error) {
	if text == "" {
		text = HostPlatform()
	}
	platform, err := v1.ParsePlatform(text)
	if err != nil || platform.OS == "" || platform.Architecture == "" {
		return nil, fault.New(fault.Invalid, "platform %q is not of the form linux/amd64", text)
	}
	return platform, nil
}

// suits tells whether an image for `have` runs where `want` is asked for. An image that names no platform suits all.
func suits(have *v1.Platform, want *v1.Platform) bool {
	if have == nil || have.OS == "" && have.Architecture == "" {
		return true
	}
	return have.OS == want.OS && have.Architecture == want.Architecture &&
		(want.Variant == "" || have.Variant == "" || have.Variant == want.Variant)
}

// choose picks an index's entry for a platform. Entries that are no images (signatures, attestations) name no real
// platform and are passed over.
func choose(manifest *v1.IndexManifest, want *v1.Platform, what string) (v1.Descriptor, error) {
	var offered []string
	for _, d := range manifest.Manifests {
		if !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
			continue
		}
		if suits(d.Platform, want) {
			return d, nil
		}
		if d.Platform.OS != "unknown" && len(offered) < maxOffered {
			offered = append(offered, d.Platform.String())
		}
	}
	return v1.Descriptor{}, fault.New(fault.NotFound, "%s has no image for %s; it has: %s", what, want, strings.Join(offered, ", "))
}

// checkPlatform refuses an image of another platform.
func checkPlatform(file *v1.ConfigFile, want *v1.Platform, what string) (string, error) {
	have := file.Platform()
	if !suits(have, want) {
		return "", fault.New(fault.NotFound, "%s is an image for %s, not for %s", what, have, want)
	}
	if have == nil || have.OS == "" && have.Architecture == "" {
		return want.String(), nil
	}
	return have.String(), nil
}
