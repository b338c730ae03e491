package service

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	blobdv1 "aenv/native/gen/aenv/blobd/v1"
	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
	"aenv/native/internal/blobd/images"
	"aenv/native/internal/blobd/source"
)

// importImage makes an image of local files. Imports are not shared: the files may have changed since another began.
func (s *Service) importImage(ctx context.Context, request *blobdv1.ImportRequest, report func(flatten.Snapshot) error) (images.Record, error) {
	if !filepath.IsAbs(request.Path) {
		return images.Record{}, fault.New(fault.Invalid, "path %q is not absolute", request.Path)
	}
	key := fmt.Sprintf("import %d", s.imports.Add(1))
	return s.bring(ctx, key, request.LeaseId, report, func(ctx context.Context, progress *flatten.Progress) (landed landing, err error) {
		scratch, err := s.newDraft()
		if err != nil {
			return landing{}, err
		}
		defer func() { err = errors.Join(err, scratch.Discard()) }()
		image, closeSource, err := s.openSource(request, scratch.Dir)
		if err != nil {
			return landing{}, err
		}
		defer func() { err = errors.Join(err, closeSource()) }()
		return s.convert(ctx, request.Path, image, progress)
	})
}

func (s *Service) openSource(request *blobdv1.ImportRequest, scratch string) (image *source.Image, closeSource func() error, err error) {
	config := source.Config{Env: request.Config.GetEnv(), Entrypoint: request.Config.GetEntrypoint(), Cmd: request.Config.GetCmd(),
		User: request.Config.GetUser(), WorkingDir: request.Config.GetWorkingDir()}
	closeSource = func() error { return nil }
	switch request.Format {
	case blobdv1.ImportRequest_FORMAT_ROOTFS_TAR:
		image, err = source.RootfsTar(request.Path, config)
	case blobdv1.ImportRequest_FORMAT_DIRECTORY:
		image, err = source.Directory(request.Path, config)
	case blobdv1.ImportRequest_FORMAT_DOCKER_ARCHIVE:
		image, closeSource, err = source.DockerArchive(request.Path, scratch, s.disk.Room)
	case blobdv1.ImportRequest_FORMAT_OCI_LAYOUT:
		image, err = source.OCILayout(request.Path)
	default:
		err = fault.New(fault.Invalid, "import format is not given")
	}
	return image, closeSource, err
}
