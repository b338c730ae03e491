package filesystem

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	filesystempb "aenv/native/gen/filesystem"
	"aenv/native/internal/envd/stream"
)

// pollingWatchersMax bounds the watchers that clients create and may never remove; beyond it the least asked for goes.
const pollingWatchersMax = 64

// networkMagic are the file systems on which inotify does not see what other machines do.
var networkMagic = map[int64]string{
	unix.NFS_SUPER_MAGIC:  "nfs",
	unix.SMB_SUPER_MAGIC:  "smb",
	unix.SMB2_SUPER_MAGIC: "smb2",
	unix.CIFS_SUPER_MAGIC: "cifs",
	unix.CEPH_SUPER_MAGIC: "ceph",
	unix.FUSE_SUPER_MAGIC: "fuse",
}

// WatchDir streams what happens in a directory. The start event comes once the watch is in place. Where events are
// lost, because they come faster than the client reads, the stream ends with data_loss: list the directory again.
func (s *Service) WatchDir(ctx context.Context, req *connect.Request[filesystempb.WatchDirRequest], out *connect.ServerStream[filesystempb.WatchDirResponse]) error {
	w, err := s.watch(req.Header(), req.Msg)
	if err != nil {
		return err
	}
	defer w.close()
	expired := make(chan struct{})
	if timeout := stream.Timeout(ctx); timeout > 0 {
		timer := s.clock.AfterFunc(timeout, func() { close(expired) })
		defer timer.Stop()
	}
	if err := out.Send(&filesystempb.WatchDirResponse{Event: &filesystempb.WatchDirResponse_Start{Start: &filesystempb.WatchDirResponse_StartEvent{}}}); err != nil {
		return err
	}
	return s.follow(ctx, w, req, out, expired)
}

func (s *Service) follow(ctx context.Context, w *watcher, req *connect.Request[filesystempb.WatchDirRequest], out *connect.ServerStream[filesystempb.WatchDirResponse], expired <-chan struct{}) error {
	keepAlive := stream.KeepAlive(req.Header())
	silence := time.NewTimer(keepAlive)
	defer silence.Stop()
	for {
		select {
		case <-w.ready:
			changes, lost := w.take()
			if lost {
				return errLost(w.root)
			}
			for _, event := range s.events(w.root, changes, req.Msg.GetIncludeEntry()) {
				if err := out.Send(&filesystempb.WatchDirResponse{Event: &filesystempb.WatchDirResponse_Filesystem{Filesystem: event}}); err != nil {
					return err
				}
			}
		case <-silence.C:
			if err := out.Send(&filesystempb.WatchDirResponse{Event: &filesystempb.WatchDirResponse_Keepalive{Keepalive: &filesystempb.WatchDirResponse_KeepAlive{}}}); err != nil {
				return err
			}
		case <-w.done:
			return connect.NewError(connect.CodeInternal, fmt.Errorf("the watch of '%s' ended", w.root))
		case <-expired:
			return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the deadline of the request has passed"))
		case <-ctx.Done():
			return ctx.Err()
		}
		silence.Reset(keepAlive)
	}
}

// CreateWatcher is WatchDir for clients that poll.
func (s *Service) CreateWatcher(_ context.Context, req *connect.Request[filesystempb.CreateWatcherRequest]) (*connect.Response[filesystempb.CreateWatcherResponse], error) {
	w, err := s.watch(req.Header(), req.Msg)
	if err != nil {
		return nil, err
	}
	id := s.watchers.add(&pollingWatcher{watcher: w, includeEntry: req.Msg.GetIncludeEntry()})
	return connect.NewResponse(&filesystempb.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents takes what happened since the last call. Lost events are told by data_loss once; the watch goes on.
func (s *Service) GetWatcherEvents(_ context.Context, req *connect.Request[filesystempb.GetWatcherEventsRequest]) (*connect.Response[filesystempb.GetWatcherEventsResponse], error) {
	w := s.watchers.get(req.Msg.GetWatcherId(), false)
	if w == nil {
		return nil, errNoWatcher(req.Msg.GetWatcherId())
	}
	w.catchUp()
	changes, lost := w.take()
	if lost {
		return nil, errLost(w.root)
	}
	return connect.NewResponse(&filesystempb.GetWatcherEventsResponse{Events: s.events(w.root, changes, w.includeEntry)}), nil
}

// RemoveWatcher ends a polling watcher.
func (s *Service) RemoveWatcher(_ context.Context, req *connect.Request[filesystempb.RemoveWatcherRequest]) (*connect.Response[filesystempb.RemoveWatcherResponse], error) {
	w := s.watchers.get(req.Msg.GetWatcherId(), true)
	if w == nil {
		return nil, errNoWatcher(req.Msg.GetWatcherId())
	}
	w.close()
	return connect.NewResponse(&filesystempb.RemoveWatcherResponse{}), nil
}

// watchRequest is what the streaming and the polling request have in common.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetAllowNetworkMounts() bool
}

func (s *Service) watch(header http.Header, req watchRequest) (*watcher, error) {
	path, _, err := s.resolve(header, req.GetPath())
	if err != nil {
		return nil, err
	}
	if err := checkDir(path); err != nil {
		return nil, err
	}
	if kind := networkMount(path); kind != "" && !req.GetAllowNetworkMounts() {
		return nil, invalid("path '%s' is on a network mount (%s), where changes made elsewhere are not seen; set allow_network_mounts to watch it anyway", path, kind)
	}
	w, err := newWatcher(path, req.GetRecursive(), &s.waiting)
	switch {
	case err == nil:
		return w, nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE):
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("path '%s': the limit of inotify watches is reached", path))
	default:
		return nil, failure(path, err)
	}
}

func networkMount(path string) string {
	var stat unix.Statfs_t
	if unix.Statfs(path, &stat) != nil {
		return ""
	}
	return networkMagic[int64(stat.Type)]
}

func (s *Service) events(root string, changes []change, includeEntry bool) []*filesystempb.FilesystemEvent {
	describer := newDescriber(s.identity.Users())
	events := make([]*filesystempb.FilesystemEvent, 0, len(changes))
	for _, c := range changes {
		event := &filesystempb.FilesystemEvent{Name: text(c.name), Type: c.kind}
		if includeEntry {
			// What is gone again has no entry.
			event.Entry, _ = describer.describe(filepath.Join(root, c.name))
		}
		events = append(events, event)
	}
	return events
}

func errLost(root string) error {
	return connect.NewError(connect.CodeDataLoss, fmt.Errorf("events of '%s' were lost because they came too fast; list the directory again", root))
}

func errNoWatcher(id string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher '%s' not found", id))
}

type pollingWatcher struct {
	*watcher
	includeEntry bool
	// askedAt is when a client last asked for its events.
	askedAt time.Time
}

type watcherTable struct {
	mu   sync.Mutex
	byID map[string]*pollingWatcher
}

// add keeps a watcher. Where there are too many, the one that nobody has asked for the longest time makes room.
func (t *watcherTable) add(w *pollingWatcher) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byID) >= pollingWatchersMax {
		t.dropOldestLocked()
	}
	if t.byID == nil {
		t.byID = map[string]*pollingWatcher{}
	}
	id := "w" + rand.Text()
	w.askedAt = time.Now()
	t.byID[id] = w
	return id
}

func (t *watcherTable) dropOldestLocked() {
	oldest := ""
	for id, w := range t.byID {
		if oldest == "" || w.askedAt.Before(t.byID[oldest].askedAt) {
			oldest = id
		}
	}
	t.byID[oldest].close()
	delete(t.byID, oldest)
}

func (t *watcherTable) get(id string, remove bool) *pollingWatcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.byID[id]
	if w != nil {
		w.askedAt = time.Now()
	}
	if remove {
		delete(t.byID, id)
	}
	return w
}

func (t *watcherTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.byID {
		w.close()
	}
	t.byID = nil
}
