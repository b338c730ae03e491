package service

import (
	"connectrpc.com/connect"

	blobdv1 "aenv/native/gen/aenv/blobd/v1"
	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
	"aenv/native/internal/blobd/images"
)

var codes = map[fault.Kind]connect.Code{
	fault.Internal:        connect.CodeInternal,
	fault.Invalid:         connect.CodeInvalidArgument,
	fault.NotFound:        connect.CodeNotFound,
	fault.Conflict:        connect.CodeFailedPrecondition,
	fault.Unauthenticated: connect.CodeUnauthenticated,
	fault.Denied:          connect.CodePermissionDenied,
	fault.Unavailable:     connect.CodeUnavailable,
	fault.Exhausted:       connect.CodeResourceExhausted,
	fault.Unsupported:     connect.CodeFailedPrecondition,
	fault.Cancelled:       connect.CodeCanceled,
}

// fail is the one place where errors get their wire code. Those that are nobody's request's fault are logged, too.
func (s *Service) fail(what string, err error) error {
	kind := fault.KindOf(err)
	if kind == fault.Internal || kind == fault.Exhausted {
		s.log.Error("request failed", "request", what, "error", err.Error())
	}
	return connect.NewError(codes[kind], err)
}

func wireProgress(now flatten.Snapshot) *blobdv1.Progress {
	return &blobdv1.Progress{Phase: string(now.Phase), DoneBytes: now.DoneBytes, TotalBytes: now.TotalBytes,
		LayersDone: now.LayersDone, LayersTotal: now.LayersTotal}
}

func wireImage(record images.Record) *blobdv1.Image {
	c := record.Config
	return &blobdv1.Image{
		Digest: record.Digest, SizeBytes: uint64(record.SizeBytes), Platform: record.Platform,
		CreatedAtUnixMs: record.StoredAtMs, Layers: uint32(record.Layers),
		Config: &blobdv1.ImageConfig{Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, User: c.User, WorkingDir: c.WorkingDir},
	}
}
