package routes

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"time"
)

// wakePause: after a wake that failed, its sandbox is not woken again for so long.
const wakePause = time.Second

var idForm = regexp.MustCompile(`^[a-z0-9]{1,63}$`)

// Way is what connects to one incarnation of a sandbox.
type Way interface {
	// Retire: from then on it has no connection and makes none, because the address is somebody else's soon.
	Retire()
	// Rest lets nothing through any more that has not been woken first, unless it is in use, or was a shorter time ago than after.
	// False: it was, and nothing is held up.
	Rest(after time.Duration) bool
	// Rouse ends a rest.
	Rouse()
}

// Known is a sandbox as the table has it. Way is the zero value unless the route has an address.
type Known[W Way] struct {
	Route
	Way W
	// revision is that of aenvd's table when it said so.
	revision int
}

// Options of a table.
type Options[W Way] struct {
	// Socket is aenvd's route feed.
	Socket string
	// Forwarder names this process to aenvd.
	Forwarder string
	// NewWay connects to the incarnation of a route with an address.
	NewWay func(Route) W
}

// Table follows aenvd's feed and survives aenvd's death with what it last knew. What it does not know it asks for, so an
// answer given by aenvd (201 after a create) is never contradicted here.
type Table[W Way] struct {
	newWay  func(Route) W
	control *control
	stop    context.CancelFunc
	ended   chan struct{}
	ctx     context.Context

	mu    sync.RWMutex
	known map[string]*Known[W]
	// epoch and revision: the aenvd that is followed, and how far.
	epoch    string
	revision int

	wakesMu sync.Mutex
	// wakes are questions under way, by path and sandbox.
	wakes map[string]*wake
}

// wake is one question for all who have it.
type wake struct {
	done chan struct{}
	err  error
}

// Follow makes a table that follows aenvd until it is closed.
func Follow[W Way](options Options[W]) *Table[W] {
	ctx, stop := context.WithCancel(context.Background())
	table := &Table[W]{
		newWay: options.NewWay, control: newControl(options.Socket, options.Forwarder), stop: stop, ctx: ctx,
		ended: make(chan struct{}), known: map[string]*Known[W]{}, revision: -1, wakes: map[string]*wake{},
	}
	go table.follow()
	return table
}

// Close ends following and everything that goes by a route.
func (t *Table[W]) Close() {
	t.stop()
	<-t.ended
	t.control.close()
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.known {
		t.set(id, nil, t.revision+1)
	}
}

// Known is what is known at this moment.
func (t *Table[W]) Known(id string) (Known[W], bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	known, ok := t.known[id]
	if !ok {
		return Known[W]{}, false
	}
	return *known, true
}

// Find is the route as known, or as aenvd says when it is not, or leads nowhere (a resume may have been answered that is still
// on its way here). False: there is no such sandbox. Errors: aenvd does not come back in time.
func (t *Table[W]) Find(ctx context.Context, id string) (Known[W], bool, error) {
	if known, ok := t.Known(id); ok && known.Address != "" {
		return known, true, nil
	}
	if !idForm.MatchString(id) {
		return Known[W]{}, false, nil
	}
	if err := t.lookUp(ctx, id); err != nil {
		return Known[W]{}, false, err
	}
	known, ok := t.Known(id)
	return known, ok, nil
}

// Wake asks aenvd to resume a paused sandbox, which the caller may; calls for one sandbox share one question, and for a moment its
// failure. Errors: RefusedError when it cannot be resumed now; others when aenvd does not come back in time.
func (t *Table[W]) Wake(ctx context.Context, id string) error { return t.wake(ctx, wakePath, id) }

// Rouse is the same for a sandbox that stands still. One that has been paused meanwhile stays so.
func (t *Table[W]) Rouse(ctx context.Context, id string) error { return t.wake(ctx, rousePath, id) }

func (t *Table[W]) wake(ctx context.Context, path, id string) error {
	t.wakesMu.Lock()
	running, ok := t.wakes[path+id]
	if !ok {
		running = &wake{done: make(chan struct{})}
		t.wakes[path+id] = running
		go t.wakeOnce(path, id, running)
	}
	t.wakesMu.Unlock()
	select {
	case <-running.done:
		return running.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wakeOnce goes on when those who asked have left: the sandbox is being woken.
func (t *Table[W]) wakeOnce(path, id string, running *wake) {
	found, err := t.control.wake(t.ctx, path, id)
	if err == nil && !t.learn(id, found) {
		err = t.lookUp(t.ctx, id)
	}
	running.err = err
	close(running.done)
	if err != nil {
		_ = sleep(t.ctx, wakePause)
	}
	t.wakesMu.Lock()
	delete(t.wakes, path+id)
	t.wakesMu.Unlock()
}

func (t *Table[W]) lookUp(ctx context.Context, id string) error {
	giveUp := time.Now().Add(patience)
	for {
		found, err := t.control.lookUp(ctx, id)
		if err != nil || t.learn(id, found) {
			return err
		}
		if time.Now().After(giveUp) {
			return errors.New("aenvd answers, but its route feed does not come")
		}
		if err := sleep(ctx, reconnectWait); err != nil {
			return err
		}
	}
}

// learn is false when the answer is of another aenvd than the one followed: it may be older or newer than what is known.
func (t *Table[W]) learn(id string, found lookedUp) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found.Epoch != t.epoch {
		return false
	}
	// A late answer does not undo what the feed has said since, which may be acknowledged already.
	if found.Revision > t.revision {
		t.set(id, found.Route, found.Revision)
	}
	return true
}

// follow takes in what aenvd says. While it is gone, what is known stays valid until the next one says otherwise.
func (t *Table[W]) follow() {
	defer close(t.ended)
	for {
		_ = t.control.follow(t.ctx, t.take)
		if sleep(t.ctx, reconnectWait) != nil {
			return
		}
	}
}

// take acknowledges a line when all that went by older routes is over.
func (t *Table[W]) take(line feedLine) error {
	t.mu.Lock()
	var busy []string
	switch {
	case line.Snapshot != nil:
		busy = t.replace(line.Snapshot.Epoch, line.Snapshot.Revision, line.Snapshot.Routes)
	case line.Change != nil:
		t.revision = line.Change.Revision
		if !t.set(line.Change.SandboxID, line.Change.Route, t.revision) {
			busy = []string{line.Change.SandboxID}
		}
	}
	epoch, revision := t.epoch, t.revision
	t.mu.Unlock()
	return t.control.acknowledge(t.ctx, epoch, revision, busy)
}

// replace returns those that were to stand still and are in use.
func (t *Table[W]) replace(epoch string, revision int, routes []Route) (busy []string) {
	// Revisions of one aenvd say nothing about those of another.
	if epoch != t.epoch {
		for _, known := range t.known {
			known.revision = -1
		}
	}
	t.epoch, t.revision = epoch, revision
	listed := map[string]bool{}
	for _, route := range routes {
		listed[route.SandboxID] = true
	}
	for id := range t.known {
		if !listed[id] {
			t.set(id, nil, revision)
		}
	}
	for _, route := range routes {
		if !t.set(route.SandboxID, &route, revision) {
			busy = append(busy, route.SandboxID)
		}
	}
	return busy
}

// set ends the connections of every incarnation but the route's. False: the sandbox was to stand still, and is in use. The lock is
// held.
func (t *Table[W]) set(id string, route *Route, revision int) bool {
	old, wasKnown := t.known[id]
	// An answer may have been ahead of the feed; of whom it found in use nobody was told.
	if wasKnown && old.revision > revision {
		return old.isAtRest()
	}
	isSame := wasKnown && route != nil && old.Address == route.Address && old.Generation == route.Generation
	if wasKnown && old.Address != "" && !isSame {
		old.Way.Retire()
	}
	if route == nil {
		delete(t.known, id)
		return true
	}
	known := &Known[W]{Route: *route, revision: revision}
	switch {
	case isSame:
		known.Way = old.Way
	case route.Address != "":
		known.Way = t.newWay(*route)
	}
	t.known[id] = known
	if route.Address != "" && route.RestAfterMs == nil {
		known.Way.Rouse()
	}
	return known.isAtRest()
}

// isAtRest is false where the sandbox is to stand still, and is in use.
func (k *Known[W]) isAtRest() bool {
	return k.Address == "" || k.RestAfterMs == nil || k.Way.Rest(k.restAfter())
}
