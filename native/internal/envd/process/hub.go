package process

import (
	"sync"
	"time"

	processpb "aenv/native/gen/process"
)

const (
	// subscriptionBytes is how much output may wait for one subscriber before the process has to wait for it.
	subscriptionBytes = 256 << 10
	// stallAfter is how long a full subscriber may take nothing before it is dropped.
	stallAfter = 5 * time.Second
)

// hub hands a process's events to whoever listens.
//
// A subscriber that reads slowly slows the process down: its queue is bounded and publish waits for room. One that
// takes nothing for stallAfter is dropped, so that a vanished client cannot stop the process or the other clients for
// longer than that. Output that nobody listens to is thrown away. The end event is kept for late subscribers.
type hub struct {
	mu   sync.Mutex
	subs map[*subscription]struct{}
	end  *processpb.ProcessEvent
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

// subscribe joins from now on; after the end it yields the end alone.
func (h *hub) subscribe(abort func()) *subscription {
	sub := &subscription{
		abort: abort,
		ready: make(chan struct{}, 1),
		space: make(chan struct{}, 1),
		gone:  make(chan struct{}),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil {
		sub.append(queued{event: h.end})
		return sub
	}
	if h.subs == nil {
		h.subs = map[*subscription]struct{}{}
	}
	h.subs[sub] = struct{}{}
	return sub
}

func (h *hub) unsubscribe(sub *subscription) {
	h.mu.Lock()
	delete(h.subs, sub)
	h.mu.Unlock()
	sub.close()
}

// publish gives output to every subscriber, waiting for slow ones. After finish it does nothing.
func (h *hub) publish(event *processpb.ProcessEvent, bytes int) {
	for _, sub := range h.snapshot() {
		if !sub.push(queued{event, bytes}) {
			h.mu.Lock()
			delete(h.subs, sub)
			h.mu.Unlock()
		}
	}
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

func (h *hub) snapshot() []*subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	subs := make([]*subscription, 0, len(h.subs))
	for sub := range h.subs {
		subs = append(subs, sub)
	}
	return subs
}

// push queues an event, waiting while the queue is full, and tells whether the subscriber is still there.
func (s *subscription) push(item queued) bool {
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
		s.waitForRoom(taken)
	}
}

func (s *subscription) waitForRoom(taken uint64) {
	stall := time.NewTimer(stallAfter)
	defer stall.Stop()
	select {
	case <-s.space:
	case <-s.gone:
	case <-stall.C:
		s.mu.Lock()
		stuck := s.taken == taken && !s.closed
		s.dropped = s.dropped || stuck
		s.mu.Unlock()
		if stuck {
			s.close()
			s.abort()
		}
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
