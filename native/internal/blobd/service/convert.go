package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
	"aenv/native/internal/blobd/images"
	"aenv/native/internal/blobd/source"
)

// pull finds the image's digest first, so that pulls of one image under several names share one conversion, and an image
// that is here already costs one question, or none when the reference names the digest.
func (s *Service) pull(ctx context.Context, request pullRequest, report func(flatten.Snapshot) error) (images.Record, error) {
	reference, err := s.registry.Parse(request.reference, request.options)
	if err != nil {
		return images.Record{}, err
	}
	if digest := reference.Digest(); digest != "" {
		if record, err := s.leaseStored(request.leaseID, digest); fault.KindOf(err) != fault.NotFound {
			return record, err
		}
	}
	if err := report(flatten.Snapshot{Phase: flatten.Resolving}); err != nil {
		return images.Record{}, err
	}
	digest, err := reference.Resolve(ctx)
	if err != nil {
		return images.Record{}, err
	}
	if record, err := s.leaseStored(request.leaseID, digest); fault.KindOf(err) != fault.NotFound {
		return record, err
	}
	return s.bring(ctx, digest, request.leaseID, report, func(ctx context.Context, progress *flatten.Progress) (landing, error) {
		image, err := reference.Load(ctx, digest)
		if err != nil {
			return landing{}, err
		}
		return s.convert(ctx, reference.String(), image, progress)
	})
}

// leaseStored leases an image if it is here; fault.NotFound otherwise.
func (s *Service) leaseStored(leaseID, digest string) (images.Record, error) {
	if err := s.store.Lease(leaseID, digest); err != nil {
		return images.Record{}, err
	}
	return s.store.Get(digest)
}

// bring waits for the conversion of this key and leases what it gives.
func (s *Service) bring(ctx context.Context, key, leaseID string, report func(flatten.Snapshot) error, convert conversion) (record images.Record, err error) {
	err = s.flights.wait(ctx, key, convert, report, func(digest string) error {
		record, err = s.leaseStored(leaseID, digest)
		return err
	})
	return record, err
}

// newDraft makes a folder for a conversion, while the disk has more free than its reserve.
func (s *Service) newDraft() (*images.Draft, error) {
	if err := s.disk.Check(); err != nil {
		return nil, err
	}
	return s.store.NewDraft()
}

// convert reads, merges and stores an image, unless it is here already. name is the image's in errors.
func (s *Service) convert(ctx context.Context, name string, image *source.Image, progress *flatten.Progress) (landed landing, err error) {
	defer func() {
		if err != nil && landed.unpin != nil {
			landed.unpin()
		}
		if err != nil {
			err = fmt.Errorf("image %s: %w", name, err)
		}
	}()
	if image.Digest != "" {
		landed = landing{image.Digest, s.store.Pin(image.Digest)}
		if _, err := s.store.Get(image.Digest); fault.KindOf(err) != fault.NotFound {
			return landed, err
		}
	}
	draft, err := s.newDraft()
	if err != nil {
		return landed, err
	}
	defer func() { err = errors.Join(err, draft.Discard()) }()
	started := time.Now()
	merged, err := flatten.Read(ctx, draft.Dir, s.disk, image.Layers, progress)
	if err != nil {
		return landed, err
	}
	defer func() { err = errors.Join(err, merged.Close()) }()
	if image.Digest == "" {
		digest := image.ContentDigest()
		landed = landing{digest, s.store.Pin(digest)}
	}
	read := time.Now()
	size, err := merged.Write(ctx, draft.ErofsPath(), landed.digest, progress)
	if err != nil {
		return landed, err
	}
	if err := draft.Commit(images.Record{FormatVersion: images.FormatVersion, Digest: landed.digest, SizeBytes: size, Platform: image.Platform,
		Layers: len(image.Layers), StoredAtMs: time.Now().UnixMilli(), Config: image.Config}); err != nil {
		return landed, err
	}
	s.log.Info("image stored", "digest", landed.digest, "sizeBytes", size, "layers", len(image.Layers),
		"readMs", read.Sub(started).Milliseconds(), "writeMs", time.Since(read).Milliseconds())
	return landed, nil
}
