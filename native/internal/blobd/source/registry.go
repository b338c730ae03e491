package source

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
	"aenv/native/internal/blobd/rootfs"
)

// Registry talks to image registries.
type Registry struct {
	transport http.RoundTripper
	// backoff is the wait before the second attempt at a request or a blob; it grows from there.
	backoff time.Duration
}

// NewRegistry keeps one pool of connections for all pulls.
func NewRegistry() *Registry { return &Registry{transport: newTransport(), backoff: time.Second} }

// PullOptions belong to one pull.
type PullOptions struct {
	// Username and Password, both empty: the node's own auth files, then anonymous.
	Username, Password string
	// Platform `os/arch[/variant]`; empty is this machine's.
	Platform string
	// PlainHTTP allows unencrypted HTTP to this registry; loopback registries may always use it.
	PlainHTTP bool
}

// Reference is an image in a registry, not yet looked up.
type Reference struct {
	registry  *Registry
	ref       name.Reference
	platform  *v1.Platform
	auth      remote.Option
	transport http.RoundTripper
}

// Parse checks a reference without asking anybody. It fails with fault.Invalid.
func (r *Registry) Parse(reference string, options PullOptions) (*Reference, error) {
	var nameOptions []name.Option
	if options.PlainHTTP {
		nameOptions = append(nameOptions, name.Insecure)
	}
	ref, err := name.ParseReference(reference, nameOptions...)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "bad image reference %q", reference)
	}
	platform, err := parsePlatform(options.Platform)
	if err != nil {
		return nil, err
	}
	auth := remote.WithAuthFromKeychain(authn.DefaultKeychain)
	if options.Username != "" || options.Password != "" {
		auth = remote.WithAuth(&authn.Basic{Username: options.Username, Password: options.Password})
	}
	guard := &plainHTTPGuard{inner: r.transport, registry: ref.Context().RegistryStr()}
	if options.PlainHTTP {
		guard.allowed = hostname(guard.registry)
	}
	return &Reference{registry: r, ref: ref, platform: platform, auth: auth, transport: guard}, nil
}

// Digest is the digest the reference itself names, empty for a tag.
func (r *Reference) Digest() string {
	if digest, ok := r.ref.(name.Digest); ok {
		return digest.DigestStr()
	}
	return ""
}

// String is the whole reference, registry included.
func (r *Reference) String() string { return r.ref.Name() }

func (r *Reference) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), r.auth, remote.WithTransport(r.transport), remote.WithUserAgent("aenv-blobd"),
		remote.WithRetryBackoff(remote.Backoff{Duration: r.registry.backoff, Factor: 3, Jitter: 0.1, Steps: 3})}
}

// maxIndexDepth: an index of indexes is allowed, more is a loop.
const maxIndexDepth = 3

// Resolve asks the registry for the digest of the reference's image for its platform.
func (r *Reference) Resolve(ctx context.Context) (digest string, err error) {
	ref := r.ref
	for range maxIndexDepth {
		descriptor, err := remote.Get(ref, r.options(ctx)...)
		if err != nil {
			return "", r.explain(ctx, err)
		}
		if !descriptor.MediaType.IsIndex() {
			return descriptor.Digest.String(), nil
		}
		index, err := descriptor.ImageIndex()
		if err != nil {
			return "", r.explain(ctx, err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			return "", fault.Wrap(fault.Invalid, err, "%s has a broken index", r)
		}
		chosen, err := choose(manifest, r.platform, r.String())
		if err != nil {
			return "", err
		}
		if !chosen.MediaType.IsIndex() {
			return chosen.Digest.String(), nil
		}
		ref = r.ref.Context().Digest(chosen.Digest.String())
	}
	return "", fault.New(fault.Invalid, "%s: index within index within index", r)
}

// Load reads the manifest and configuration of the image with this digest, which Resolve gave. Reading its layers is
// bound to ctx, too.
func (r *Reference) Load(ctx context.Context, digest string) (*Image, error) {
	image, err := remote.Image(r.ref.Context().Digest(digest), r.options(ctx)...)
	if err != nil {
		return nil, r.explain(ctx, err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "%s has a broken manifest", r)
	}
	if kind := manifest.Config.MediaType; !kind.IsConfig() {
		return nil, fault.New(fault.Invalid, "%s is no container image: its configuration is a %q", r, kind)
	}
	if err := checkManifest(manifest, r.String()); err != nil {
		return nil, err
	}
	raw, err := image.RawConfigFile()
	if err != nil {
		return nil, r.explain(ctx, err)
	}
	file, err := parseConfig(raw, r.String())
	if err != nil {
		return nil, err
	}
	platform, err := checkPlatform(file, r.platform, r.String())
	if err != nil {
		return nil, err
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, r.explain(ctx, err)
	}
	loaded := &Image{Digest: digest, Platform: platform, Config: configOf(file)}
	for i, layer := range layers {
		loaded.Layers = append(loaded.Layers, r.input(layer, manifest.Layers[i]))
	}
	return loaded, nil
}

func (r *Reference) input(layer v1.Layer, descriptor v1.Descriptor) flatten.Input {
	return flatten.Input{
		ID:        descriptor.Digest.String(),
		SizeBytes: uint64(max(descriptor.Size, 0)),
		Read: func(ctx context.Context, spool *rootfs.Spool, budget *rootfs.Budget, count func(int64)) (*rootfs.Layer, error) {
			return r.download(ctx, layer, descriptor.MediaType, spool, budget, count)
		},
	}
}

// download reads one blob, from its start again when the connection breaks.
func (r *Reference) download(ctx context.Context, layer v1.Layer, kind types.MediaType, spool *rootfs.Spool,
	budget *rootfs.Budget, count func(int64)) (*rootfs.Layer, error) {
	var read *rootfs.Layer
	err := retry(ctx, r.registry.backoff, func() error {
		if err := spool.Reset(); err != nil {
			return err
		}
		part := budget.Part()
		stored, err := layer.Compressed()
		if err != nil {
			return r.explain(ctx, err)
		}
		guarded := closeWhenStalled(stored, stallTimeout)
		defer guarded.Close()
		// The stream checks size and digest by itself; a mismatch is a read error.
		read, err = readTarLayer(ctx, guarded, expectation{}, spool, part, rootfs.TarOptions{Whiteouts: true}, count)
		if err != nil {
			part.GiveBack()
		}
		var transfer *transferError
		if errors.As(err, &transfer) && ctx.Err() == nil {
			return fault.Wrap(fault.Unavailable, err, "registry %s", r.ref.Context().RegistryStr())
		}
		return err
	})
	if fault.KindOf(err) == fault.Invalid {
		return nil, fmt.Errorf("media type %q: %w", kind, err)
	}
	return read, err
}

// explain turns what the registry or the network said into a kind and a text that names the registry.
func (r *Reference) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	registry := r.ref.Context().RegistryStr()
	return explainRegistryError(err, registry, strings.TrimPrefix(r.ref.Name(), registry+"/"))
}
