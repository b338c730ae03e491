package service

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"

	blobdv1 "aenv/native/gen/aenv/blobd/v1"
	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/pack"
	"aenv/native/internal/blobd/sparse"
)

const (
	// maxLayers are open at once.
	maxLayers     = 256
	maxDataRanges = 1 << 20
	// rangeBytes are an offset and a length.
	rangeBytes = 16
)

// CopyFile copies a sparse file.
func (s *Service) CopyFile(ctx context.Context, request *connect.Request[blobdv1.CopyFileRequest]) (*connect.Response[blobdv1.CopyFileResponse], error) {
	source, target := request.Msg.Source, request.Msg.Target
	if err := checkPaths(source, target); err != nil {
		return nil, s.fail("copy file", err)
	}
	copied, err := sparse.Copy(ctx, source, target)
	if err != nil {
		return nil, s.fail("copy file", err)
	}
	return connect.NewResponse(&blobdv1.CopyFileResponse{Shared: copied.Shared, CopiedBytes: uint64(copied.Bytes)}), nil
}

// ApplyLayers writes layers over a file.
func (s *Service) ApplyLayers(ctx context.Context, request *connect.Request[blobdv1.ApplyLayersRequest]) (*connect.Response[blobdv1.ApplyLayersResponse], error) {
	layers, target := request.Msg.Layers, request.Msg.Target
	if count := len(layers); count > maxLayers {
		return nil, s.fail("apply layers", fault.New(fault.Invalid, "%d layers at once, at most %d are possible", count, maxLayers))
	}
	if err := errors.Join(checkPaths(target), checkPaths(layers...)); err != nil {
		return nil, s.fail("apply layers", err)
	}
	bytes, err := sparse.Apply(ctx, layers, target)
	if err != nil {
		return nil, s.fail("apply layers", err)
	}
	return connect.NewResponse(&blobdv1.ApplyLayersResponse{Bytes: uint64(bytes)}), nil
}

// DataRanges maps a sparse file.
func (s *Service) DataRanges(ctx context.Context, request *connect.Request[blobdv1.DataRangesRequest]) (*connect.Response[blobdv1.DataRangesResponse], error) {
	if err := checkPaths(request.Msg.Path); err != nil {
		return nil, s.fail("data ranges", err)
	}
	find := sparse.DataRanges
	if request.Msg.UnsharedOnly {
		find = sparse.UnsharedRanges
	}
	found, err := find(ctx, request.Msg.Path, maxDataRanges)
	if err != nil {
		return nil, s.fail("data ranges", err)
	}
	ranges := make([]byte, 0, len(found.Ranges)*rangeBytes)
	for _, r := range found.Ranges {
		ranges = binary.LittleEndian.AppendUint64(ranges, uint64(r.Offset))
		ranges = binary.LittleEndian.AppendUint64(ranges, uint64(r.Length))
	}
	return connect.NewResponse(&blobdv1.DataRangesResponse{SizeBytes: uint64(found.SizeBytes), Ranges: ranges, Coalesced: found.Coalesced}), nil
}

// SealFiles makes files unchangeable.
func (s *Service) SealFiles(_ context.Context, request *connect.Request[blobdv1.SealFilesRequest]) (*connect.Response[blobdv1.SealFilesResponse], error) {
	if count := len(request.Msg.Files); count > maxLayers {
		return nil, s.fail("seal files", fault.New(fault.Invalid, "%d files at once, at most %d are possible", count, maxLayers))
	}
	for _, file := range request.Msg.Files {
		if err := checkPaths(file.Path); err != nil {
			return nil, s.fail("seal files", err)
		}
		if err := sparse.Seal(file.Path, file.SizeBytes); err != nil {
			return nil, s.fail("seal files", err)
		}
	}
	return connect.NewResponse(&blobdv1.SealFilesResponse{}), nil
}

// PackDirectory makes an EROFS file of a directory. It is part of what machines run on, so the disk's reserve is not kept
// from it.
func (s *Service) PackDirectory(ctx context.Context, request *connect.Request[blobdv1.PackDirectoryRequest]) (*connect.Response[blobdv1.PackDirectoryResponse], error) {
	size, err := s.packDirectory(ctx, request.Msg.Dir, request.Msg.Target)
	if err != nil {
		return nil, s.fail("pack directory", err)
	}
	return connect.NewResponse(&blobdv1.PackDirectoryResponse{SizeBytes: uint64(size)}), nil
}

func (s *Service) packDirectory(ctx context.Context, dir, target string) (size int64, err error) {
	if err := checkPaths(dir, target); err != nil {
		return 0, err
	}
	draft, err := s.store.NewDraft()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, draft.Discard()) }()
	return pack.Directory(ctx, dir, target, draft.Dir)
}

// checkPaths refuses what could mean another file than it says.
func checkPaths(paths ...string) error {
	for _, path := range paths {
		switch {
		case !filepath.IsAbs(path):
			return fault.New(fault.Invalid, "path %q is not absolute", path)
		case filepath.Clean(path) != path || strings.ContainsRune(path, 0):
			return fault.New(fault.Invalid, "path %q is not clean; write %q", path, strings.ReplaceAll(filepath.Clean(path), "\x00", ""))
		}
	}
	return nil
}
