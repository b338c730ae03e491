package proc

import (
	"sync"
	"time"
)

// Exit is how a process ended. Code is -1 when a signal ended it or when nobody of ours was its parent.
type Exit struct {
	Code   int
	Signal int
	At     time.Time
}

// Event is one exit as it is told to subscribers. Seq grows by one with each.
type Event struct {
	Seq        uint64
	Pid        int
	StartTicks uint64
	Exit       Exit
}

// ringSize bounds what is remembered: a subscriber that falls further behind is told so and starts over.
const ringSize = 4096

// Ring remembers the newest exits and wakes those who wait for more.
type Ring struct {
	mu     sync.Mutex
	events []Event // oldest first, consecutive Seq
	last   uint64
	more   chan struct{} // closed and replaced at each event
}

func newRing() *Ring { return &Ring{more: make(chan struct{})} }

func (r *Ring) add(pid int, startTicks uint64, exit Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	if len(r.events) == ringSize {
		copy(r.events, r.events[1:])
		r.events = r.events[:ringSize-1]
	}
	r.events = append(r.events, Event{Seq: r.last, Pid: pid, StartTicks: startTicks, Exit: exit})
	close(r.more)
	r.more = make(chan struct{})
}

// Last is the number of the newest event, 0 before the first.
func (r *Ring) Last() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// After returns the events past seq and a channel that is closed when there are more. complete is false when some of
// them have been forgotten already.
func (r *Ring) After(seq uint64) (events []Event, complete bool, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seq >= r.last {
		return nil, true, r.more
	}
	oldest := r.events[0].Seq
	complete = seq+1 >= oldest
	from := 0
	if complete {
		from = int(seq + 1 - oldest)
	}
	return append([]Event(nil), r.events[from:]...), complete, r.more
}

// find returns the newest remembered exit of a process.
func (r *Ring) find(pid int, startTicks uint64) (Exit, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.events) - 1; i >= 0; i-- {
		if e := r.events[i]; e.Pid == pid && e.StartTicks == startTicks {
			return e.Exit, true
		}
	}
	return Exit{}, false
}
