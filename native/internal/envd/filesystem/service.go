// Package filesystem is the filesystem.Filesystem service: a client's view of the sandbox's files.
//
// Paths are resolved for the acting user, and what is made belongs to that user, but the work is done with the agent's
// own rights: a client that may call the agent may reach every file of the sandbox.
package filesystem

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"

	filesystempb "aenv/native/gen/filesystem"
	"aenv/native/gen/filesystem/filesystemconnect"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/runclock"
	"aenv/native/internal/envd/users"
)

// entriesMax bounds an answer, which is in memory as a whole.
const entriesMax = 250_000

// Service implements filesystem.Filesystem.
type Service struct {
	identity *identity.Store
	clock    *runclock.Clock
	watchers watcherTable
	// waiting is how many events wait for clients.
	waiting atomic.Int64
}

var _ filesystemconnect.FilesystemHandler = (*Service)(nil)

// NewService returns a service without watchers. Close ends those that clients leave behind.
func NewService(who *identity.Store, clock *runclock.Clock) *Service {
	return &Service{identity: who, clock: clock}
}

// Close ends every polling watcher.
func (s *Service) Close() { s.watchers.close() }

// Stat tells about one path.
func (s *Service) Stat(_ context.Context, req *connect.Request[filesystempb.StatRequest]) (*connect.Response[filesystempb.StatResponse], error) {
	path, _, err := s.resolve(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	entry, err := newDescriber(s.identity.Users()).describe(path)
	if err != nil {
		return nil, failure(path, err)
	}
	return connect.NewResponse(&filesystempb.StatResponse{Entry: entry}), nil
}

// MakeDir makes a directory and its parents; one that exists already is an error with its own code.
func (s *Service) MakeDir(_ context.Context, req *connect.Request[filesystempb.MakeDirRequest]) (*connect.Response[filesystempb.MakeDirResponse], error) {
	path, user, err := s.resolve(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory '%s' already exists", path))
		}
		return nil, invalid("path '%s' already exists and is not a directory", path)
	}
	if err := EnsureDirs(path, user); err != nil {
		return nil, failure(path, err)
	}
	entry, err := newDescriber(s.identity.Users()).describe(path)
	if err != nil {
		return nil, failure(path, err)
	}
	return connect.NewResponse(&filesystempb.MakeDirResponse{Entry: entry}), nil
}

// Move renames within one file system, making the destination's parents.
func (s *Service) Move(_ context.Context, req *connect.Request[filesystempb.MoveRequest]) (*connect.Response[filesystempb.MoveResponse], error) {
	source, user, err := s.resolve(req.Header(), req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	destination, err := ResolvePath(req.Msg.GetDestination(), user)
	if err != nil {
		return nil, invalid("%v", err)
	}
	info, err := os.Lstat(source)
	if err != nil {
		return nil, failure(source, err)
	}
	// Before the parents are made: a move that is refused leaves nothing behind.
	if isBelow(destination, info) {
		return nil, invalid("'%s' cannot be moved into itself", source)
	}
	if err := EnsureDirs(filepath.Dir(destination), user); err != nil {
		return nil, failure(destination, err)
	}
	if err := move(source, destination); err != nil {
		return nil, err
	}
	entry, err := newDescriber(s.identity.Users()).describe(destination)
	if err != nil {
		return nil, failure(destination, err)
	}
	return connect.NewResponse(&filesystempb.MoveResponse{Entry: entry}), nil
}

// ListDir lists a directory, depth levels deep, each directory before what is in it, by name. Links are not followed.
func (s *Service) ListDir(ctx context.Context, req *connect.Request[filesystempb.ListDirRequest]) (*connect.Response[filesystempb.ListDirResponse], error) {
	path, _, err := s.resolve(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if err := checkDir(path); err != nil {
		return nil, err
	}
	lister := &lister{ctx: ctx, describer: newDescriber(s.identity.Users()), entries: []*filesystempb.EntryInfo{}}
	if err := lister.list(path, max(1, req.Msg.GetDepth())); err != nil {
		return nil, failure(path, err)
	}
	return connect.NewResponse(&filesystempb.ListDirResponse{Entries: lister.entries}), nil
}

// Remove deletes a path and all below it. A link is deleted, not its target; nothing there is fine.
func (s *Service) Remove(_ context.Context, req *connect.Request[filesystempb.RemoveRequest]) (*connect.Response[filesystempb.RemoveResponse], error) {
	path, _, err := s.resolve(req.Header(), req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if path == "/" {
		return nil, invalid("the root directory cannot be removed")
	}
	if err := removeTree(path); err != nil {
		return nil, failure(path, err)
	}
	return connect.NewResponse(&filesystempb.RemoveResponse{}), nil
}

func (s *Service) resolve(header http.Header, path string) (string, users.User, error) {
	user, err := s.identity.RequestUser(header)
	if err != nil {
		return "", user, connect.NewError(connect.CodeUnauthenticated, err)
	}
	resolved, err := ResolvePath(path, user)
	if err != nil {
		return "", user, invalid("%v", err)
	}
	return resolved, user, nil
}

func checkDir(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return failure(path, err)
	}
	if !info.IsDir() {
		return invalid("path '%s' is not a directory", path)
	}
	return nil
}

type lister struct {
	ctx       context.Context
	describer *describer
	entries   []*filesystempb.EntryInfo
}

func (l *lister) list(dir string, depth uint32) error {
	// The slash makes a directory behind a link readable as one.
	children, err := os.ReadDir(dir + "/")
	if err != nil {
		return err
	}
	for _, child := range children {
		if err := l.ctx.Err(); err != nil {
			return err
		}
		if strings.HasPrefix(child.Name(), TemporaryPrefix) {
			continue
		}
		path := filepath.Join(dir, child.Name())
		info, err := child.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if len(l.entries) >= entriesMax {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("more than %d entries; list with less depth, or its folders one by one", entriesMax))
		}
		l.entries = append(l.entries, l.describer.describeInfo(path, info))
		if child.IsDir() && depth > 1 {
			if err := l.list(path, depth-1); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
