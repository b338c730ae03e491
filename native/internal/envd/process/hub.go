package process

import (
	"sync"
	"time"

	processpb "aenv/native/gen/process"
)

const (
	// subscriptionBytes is how much output may wait for one subscriber before the process has to wait for it.
	subscriptionBytes = 256 << 10
	// patienceLook is how often it is looked who else waits for a full subscriber.
	patienceLook = time.Second
)

// patience is how long a full subscriber may take nothing before it is dropped.
type patience struct {
	// others is for one that other subscribers wait behind.
	others time.Duration
	// alone is for the only one: a client that is busy with what it has read.
	alone time.Duration
}

// hub hands a process's events to whoever listens.
//
// A subscriber that reads slowly slows the process down: its queue is bounded and publish waits for room. One that
// takes nothing for too long is dropped, so that a vanished client cannot stop the process or the other clients for
// longer than that. The latest output is kept, whoever has read it: who attaches later is told it first. So is the end.
type hub struct {
	patience patience
	// crowded is called when all histories together are too large, with no lock held.
	crowded func()

	// order is held from where output is remembered until every subscriber has it, so that all see it in the same order:
	// offsets count through both of a process's streams.
	order sync.Mutex

	mu      sync.Mutex
	subs    map[*subscription]struct{}
	history history
	end     *processpb.ProcessEvent
}

// subscription is one listener's queue. Its channels only wake; the state behind mu is what counts.
type subscription struct {
	// abort unblocks the listener's network write when the subscription is dropped.
	abort func()

	ready chan struct{}
	space chan struct{}
	gone  chan struct{}

	mu      sync.Mutex
	queue   []queued
	bytes   int
	taken   uint64
	dropped bool
	closed  bool
}

type queued struct {
	event *processpb.ProcessEvent
	bytes int
}

// subscribe joins: the subscription begins with what is kept of the output so far, from an offset on, and goes on without a
// gap. begins is the offset of its first byte.
func (h *hub) subscribe(abort func(), from int64) (sub *subscription, begins int64) {
	sub = &subscription{
		abort: abort,
		ready: make(chan struct{}, 1),
		space: make(chan struct{}, 1),
		gone:  make(chan struct{}),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	replay, begins := h.history.replay(from)
	for _, piece := range replay {
		sub.append(queued{piece.from.event(piece.data), len(piece.data)})
	}
	if h.end != nil {
		sub.append(queued{event: h.end})
		return sub, begins
	}
	if h.subs == nil {
		h.subs = map[*subscription]struct{}{}
	}
	h.subs[sub] = struct{}{}
	return sub, begins
}

func (h *hub) unsubscribe(sub *subscription) {
	h.remove(sub)
	sub.close()
}

func (h *hub) remove(sub *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, sub)
}

// publish gives output, which must not be changed afterwards, to every subscriber, waiting for slow ones. After finish it
// does nothing.
func (h *hub) publish(from channel, data []byte) {
	h.order.Lock()
	defer h.order.Unlock()
	subs := h.keep(from, data)
	if h.history.total.Load() > historiesBytes {
		h.crowded()
	}
	if len(subs) == 0 {
		return
	}
	item := queued{from.event(data), len(data)}
	for _, sub := range subs {
		if !sub.push(item, h.patienceWith) {
			h.remove(sub)
		}
	}
}

// keep remembers output and returns who is to get it: everybody else is told by subscribe.
func (h *hub) keep(from channel, data []byte) []*subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil {
		return nil
	}
	h.history.add(from, data)
	subs := make([]*subscription, 0, len(h.subs))
	for sub := range h.subs {
		subs = append(subs, sub)
	}
	return subs
}

// trimHistory forgets the older output, all but limit bytes.
func (h *hub) trimHistory(limit int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history.trim(limit)
}

func (h *hub) keptBytes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.history.bytes
}

// finish gives the end to every subscriber and lets no output follow it.
func (h *hub) finish(end *processpb.ProcessEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = end
	for sub := range h.subs {
		sub.append(queued{event: end})
	}
	h.subs = nil
}

// patienceWith is the patience with a subscriber as things are now.
func (h *hub) patienceWith() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) > 1 {
		return h.patience.others
	}
	return h.patience.alone
}

// push queues an event, waiting while the queue is full, and tells whether the subscriber is still there.
func (s *subscription) push(item queued, patience func() time.Duration) bool {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return false
		}
		if s.bytes < subscriptionBytes {
			s.appendLocked(item)
			s.mu.Unlock()
			return true
		}
		taken := s.taken
		s.mu.Unlock()
		s.waitForRoom(taken, patience)
	}
}

// waitForRoom returns when something has been taken or the subscriber is gone; at the end of the patience it is dropped.
func (s *subscription) waitForRoom(taken uint64, patience func() time.Duration) {
	for waited := time.Duration(0); ; {
		// Somebody may join meanwhile, for whom there is less patience with this one. What a look takes beyond its time does not
		// count: the machine was paused, and nobody could take anything.
		next := max(0, min(patience()-waited, patienceLook))
		look := time.NewTimer(next)
		select {
		case <-s.space:
			look.Stop()
			return
		case <-s.gone:
			look.Stop()
			return
		case <-look.C:
		}
		waited += next
		if waited >= patience() {
			s.dropIfStuck(taken)
			return
		}
	}
}

// dropIfStuck drops a subscriber that has taken nothing since.
func (s *subscription) dropIfStuck(taken uint64) {
	s.mu.Lock()
	stuck := s.taken == taken && !s.closed
	s.dropped = s.dropped || stuck
	s.mu.Unlock()
	if stuck {
		s.close()
		s.abort()
	}
}

func (s *subscription) append(item queued) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appendLocked(item)
}

func (s *subscription) appendLocked(item queued) {
	s.queue = append(s.queue, item)
	s.bytes += item.bytes
	wake(s.ready)
}

// take gives the next event, or nil when there is none yet. dropped means that none will come any more.
func (s *subscription) take() (event *processpb.ProcessEvent, dropped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return nil, true
	}
	if len(s.queue) == 0 {
		return nil, false
	}
	item := s.queue[0]
	s.queue[0] = queued{}
	s.queue = s.queue[1:]
	s.bytes -= item.bytes
	s.taken++
	wake(s.space)
	return item.event, false
}

func (s *subscription) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.queue, s.bytes = nil, 0
		close(s.gone)
	}
}

// wake leaves at most one token: whoever takes it looks at the state again.
func wake(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
