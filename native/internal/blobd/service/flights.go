package service

import (
	"context"
	"sync"
	"time"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/flatten"
)

const (
	// maxConversions run at once; each reads several layers in parallel already.
	maxConversions = 2
	// maxFlights may run or wait.
	maxFlights    = 64
	progressEvery = 200 * time.Millisecond
)

// flight is one conversion under way, shared by all who want its image. It goes on until it is done or nobody waits.
type flight struct {
	progress flatten.Progress
	cancel   context.CancelFunc
	waiters  int
	done     chan struct{}
	// landing and err are set before done is closed.
	landing landing
	err     error
}

// landing is a stored image that cannot be collected until unpin is called.
type landing struct {
	digest string
	unpin  func()
}

// conversion makes the image, or finds that it is there.
type conversion func(ctx context.Context, progress *flatten.Progress) (landing, error)

// flights owns all conversions; close ends them.
type flights struct {
	ctx   context.Context
	stop  context.CancelFunc
	slots chan struct{}

	mu      sync.Mutex
	flying  map[string]*flight
	running sync.WaitGroup
	closed  bool
}

func newFlights() *flights {
	ctx, stop := context.WithCancel(context.Background())
	return &flights{ctx: ctx, stop: stop, slots: make(chan struct{}, maxConversions), flying: map[string]*flight{}}
}

// close cancels all conversions and waits for them.
func (f *flights) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop()
	f.running.Wait()
}

// wait joins the flight of this key, or starts it, and reports its progress until it is done or ctx ends. Then land is
// called with the image's digest, while nothing can collect the image.
func (f *flights) wait(ctx context.Context, key string, convert conversion, report func(flatten.Snapshot) error, land func(digest string) error) error {
	current, err := f.join(key, convert)
	if err != nil {
		return err
	}
	defer f.leave(key, current)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	var last flatten.Snapshot
	for {
		if now := current.progress.Snapshot(); now != last {
			last = now
			if err := report(now); err != nil {
				return fault.Wrap(fault.Cancelled, err, "the caller went away")
			}
		}
		select {
		case <-current.done:
			if current.err != nil {
				return current.err
			}
			if err := report(current.progress.Snapshot()); err != nil {
				return fault.Wrap(fault.Cancelled, err, "the caller went away")
			}
			return land(current.landing.digest)
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

func (f *flights) join(key string, convert conversion) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fault.New(fault.Unavailable, "blobd is stopping")
	}
	if current := f.flying[key]; current != nil {
		current.waiters++
		return current, nil
	}
	if len(f.flying) >= maxFlights {
		return nil, fault.New(fault.Exhausted, "%d images are being converted or wait for it; try later", maxFlights)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	current := &flight{cancel: cancel, waiters: 1, done: make(chan struct{})}
	f.flying[key] = current
	f.running.Go(func() {
		defer cancel()
		current.landing, current.err = f.run(ctx, convert, &current.progress)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.flying[key] == current {
			delete(f.flying, key)
		}
		close(current.done)
		if current.waiters == 0 {
			current.unpin()
		}
	})
	return current, nil
}

func (f *flights) run(ctx context.Context, convert conversion, progress *flatten.Progress) (landed landing, err error) {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
		landed, err = convert(ctx, progress)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil && f.ctx.Err() != nil {
		err = fault.Wrap(fault.Unavailable, err, "blobd is stopping")
	}
	return landed, err
}

// leave gives up waiting. The last one out cancels the flight; whoever comes afterwards starts a new one.
func (f *flights) leave(key string, current *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if current.waiters--; current.waiters > 0 {
		return
	}
	current.cancel()
	if f.flying[key] == current {
		delete(f.flying, key)
	}
	select {
	case <-current.done:
		current.unpin()
	default:
		// The conversion has not noticed yet; it cleans up when it does.
	}
}

// unpin: preconditions: done, no waiters.
func (c *flight) unpin() {
	if c.landing.unpin != nil {
		c.landing.unpin()
	}
}
