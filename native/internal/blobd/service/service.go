// Package service speaks blobd's protocol: it checks requests, calls one thing, and turns results and errors into the
// wire's.
package service

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync/atomic"

	"connectrpc.com/connect"

	blobdv1 "aenv/native/gen/aenv/blobd/v1"
	"aenv/native/gen/aenv/blobd/v1/blobdv1connect"
	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
	"aenv/native/internal/blobd/images"
	"aenv/native/internal/blobd/source"
	"aenv/native/internal/blobd/space"
	"aenv/native/internal/durable"
)

const (
	maxRequestBytes = 4 << 20
	maxSyncPaths    = 1024
)

// Service implements the protocol. Close it before the store.
type Service struct {
	store    *images.Store
	registry *source.Registry
	log      *slog.Logger
	flights  *flights
	// disk is where images are made and kept.
	disk    *space.Guard
	imports atomic.Int64
}

// New makes the service of a store, which stays the caller's.
func New(store *images.Store, log *slog.Logger) *Service {
	return &Service{store: store, registry: source.NewRegistry(), log: log, flights: newFlights(), disk: space.NewGuard(store.Root())}
}

// Close cancels pulls and imports and waits for them. Mounts and leases stay.
func (s *Service) Close() { s.flights.close() }

// Handler is the service over HTTP.
func (s *Service) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(blobdv1connect.NewBlobdHandler(s, connect.WithReadMaxBytes(maxRequestBytes)))
	return mux
}

type pullRequest struct {
	reference, leaseID string
	options            source.PullOptions
}

// Pull brings an image from a registry.
func (s *Service) Pull(ctx context.Context, request *connect.Request[blobdv1.PullRequest], stream *connect.ServerStream[blobdv1.PullResponse]) error {
	m := request.Msg
	return s.stream("pull", m.LeaseId, stream, func(report func(flatten.Snapshot) error) (images.Record, error) {
		return s.pull(ctx, pullRequest{m.Reference, m.LeaseId, source.PullOptions{
			Username: m.Credentials.GetUsername(), Password: m.Credentials.GetPassword(),
			Platform: m.Platform, PlainHTTP: m.PlainHttp,
		}}, report)
	})
}

// Import makes an image from files of this machine.
func (s *Service) Import(ctx context.Context, request *connect.Request[blobdv1.ImportRequest], stream *connect.ServerStream[blobdv1.PullResponse]) error {
	return s.stream("import", request.Msg.LeaseId, stream, func(report func(flatten.Snapshot) error) (images.Record, error) {
		return s.importImage(ctx, request.Msg, report)
	})
}

// stream sends progress while work goes on, and the image at its end.
func (s *Service) stream(what, leaseID string, stream *connect.ServerStream[blobdv1.PullResponse],
	work func(report func(flatten.Snapshot) error) (images.Record, error)) error {
	if err := images.CheckLeaseID(leaseID); err != nil {
		return s.fail(what, err)
	}
	var last flatten.Snapshot
	record, err := work(func(now flatten.Snapshot) error {
		last = now
		return stream.Send(&blobdv1.PullResponse{Progress: wireProgress(now)})
	})
	if err != nil {
		return s.fail(what, err)
	}
	last.Phase = flatten.Done
	return stream.Send(&blobdv1.PullResponse{Progress: wireProgress(last), Image: wireImage(record)})
}

// GetImage describes one image.
func (s *Service) GetImage(_ context.Context, request *connect.Request[blobdv1.GetImageRequest]) (*connect.Response[blobdv1.GetImageResponse], error) {
	record, err := s.store.Get(request.Msg.Digest)
	if err != nil {
		return nil, s.fail("get image", err)
	}
	return connect.NewResponse(&blobdv1.GetImageResponse{Image: wireImage(record)}), nil
}

// ListImages describes all images.
func (s *Service) ListImages(context.Context, *connect.Request[blobdv1.ListImagesRequest]) (*connect.Response[blobdv1.ListImagesResponse], error) {
	response := &blobdv1.ListImagesResponse{}
	for _, record := range s.store.List() {
		response.Images = append(response.Images, wireImage(record))
	}
	return connect.NewResponse(response), nil
}

// Mount shows an image as a directory, and tells its file.
func (s *Service) Mount(_ context.Context, request *connect.Request[blobdv1.MountRequest]) (*connect.Response[blobdv1.MountResponse], error) {
	mounted, err := s.store.Mount(request.Msg.LeaseId, request.Msg.Digest)
	if err != nil {
		return nil, s.fail("mount", err)
	}
	return connect.NewResponse(&blobdv1.MountResponse{Path: mounted.Dir, ImagePath: mounted.File}), nil
}

// Lease holds an image.
func (s *Service) Lease(_ context.Context, request *connect.Request[blobdv1.LeaseRequest]) (*connect.Response[blobdv1.LeaseResponse], error) {
	if err := s.store.Lease(request.Msg.LeaseId, request.Msg.Digest); err != nil {
		return nil, s.fail("lease", err)
	}
	return connect.NewResponse(&blobdv1.LeaseResponse{}), nil
}

// Release ends a lease.
func (s *Service) Release(_ context.Context, request *connect.Request[blobdv1.ReleaseRequest]) (*connect.Response[blobdv1.ReleaseResponse], error) {
	if err := s.store.Release(request.Msg.LeaseId); err != nil {
		return nil, s.fail("release", err)
	}
	return connect.NewResponse(&blobdv1.ReleaseResponse{}), nil
}

// ListLeases names all leases.
func (s *Service) ListLeases(context.Context, *connect.Request[blobdv1.ListLeasesRequest]) (*connect.Response[blobdv1.ListLeasesResponse], error) {
	return connect.NewResponse(&blobdv1.ListLeasesResponse{LeaseIds: s.store.Leases()}), nil
}

// Sync makes files durable.
func (s *Service) Sync(ctx context.Context, request *connect.Request[blobdv1.SyncRequest]) (*connect.Response[blobdv1.SyncResponse], error) {
	if count := len(request.Msg.Paths); count > maxSyncPaths {
		return nil, s.fail("sync", fault.New(fault.Invalid, "%d paths at once, at most %d are possible", count, maxSyncPaths))
	}
	for _, path := range request.Msg.Paths {
		if !filepath.IsAbs(path) {
			return nil, s.fail("sync", fault.New(fault.Invalid, "path %q is not absolute", path))
		}
	}
	bytes, err := durable.SyncTrees(ctx, request.Msg.Paths)
	if errors.Is(err, fs.ErrNotExist) {
		err = fault.Wrap(fault.NotFound, err, "cannot sync")
	}
	if err != nil {
		return nil, s.fail("sync", err)
	}
	return connect.NewResponse(&blobdv1.SyncResponse{Bytes: bytes}), nil
}

// Collect deletes what nobody needs.
func (s *Service) Collect(_ context.Context, request *connect.Request[blobdv1.CollectRequest]) (*connect.Response[blobdv1.CollectResponse], error) {
	collected, err := s.store.Collect(request.Msg.DryRun)
	if err != nil {
		return nil, s.fail("collect", err)
	}
	return connect.NewResponse(&blobdv1.CollectResponse{Digests: collected.Digests, Bytes: collected.Bytes}), nil
}
