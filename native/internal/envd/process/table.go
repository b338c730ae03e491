package process

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
	"aenv/native/internal/envd/runclock"
)

const (
	// endKept is how long the end of a process is kept for a late Connect, and at most as long again. It is running time: who
	// comes back after a pause finds it.
	endKept = 30 * time.Second
	// endsKept bounds how many are kept.
	endsKept = 1024
)

// table knows the processes by pid: the live ones, and those that ended a moment ago.
type table struct {
	mu    sync.Mutex
	byPID map[int]*process
	// ended are kept, the oldest first; the first aged of them had ended before the last sweep. There is a next one while sweeping.
	ended    []*process
	aged     int
	sweeping bool
	// kept is what the histories of all of them hold.
	kept atomic.Int64
}

func (t *table) add(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byPID == nil {
		t.byPID = map[int]*process{}
	}
	t.byPID[p.pid] = p
}

// retire keeps an ended process for a while.
func (t *table) retire(p *process, clock *runclock.Clock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = append(t.ended, p)
	if len(t.ended) > endsKept {
		t.forgetLocked(t.ended[0])
	}
	if !t.sweeping {
		t.sweeping = true
		clock.AfterFunc(endKept, func() { t.sweep(clock) })
	}
}

// sweep forgets who has been kept for long enough: one timer for all, however many end.
func (t *table) sweep(clock *runclock.Clock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.aged > 0 {
		t.forgetLocked(t.ended[0])
	}
	t.aged = len(t.ended)
	t.sweeping = t.aged > 0
	if t.sweeping {
		clock.AfterFunc(endKept, func() { t.sweep(clock) })
	}
}

// forget lets nobody find an ended process any more.
func (t *table) forget(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(p)
}

func (t *table) forgetLocked(p *process) {
	if i := slices.Index(t.ended, p); i >= 0 {
		t.ended = slices.Delete(t.ended, i, i+1)
		if i < t.aged {
			t.aged--
		}
	}
	if t.byPID[p.pid] == p {
		delete(t.byPID, p.pid)
	}
	p.hub.trimHistory(0)
}

// trimHistories makes room where all kept output together is too much: that of processes that have ended goes first, the
// oldest before the others, then half of the largest of those that run.
func (t *table) trimHistories() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.ended {
		if t.kept.Load() <= historiesBytes/2 {
			return
		}
		p.hub.trimHistory(0)
	}
	for t.kept.Load() > historiesBytes {
		var largest *process
		most := 0
		for _, p := range t.byPID {
			if kept := p.hub.keptBytes(); kept > most {
				largest, most = p, kept
			}
		}
		if largest == nil {
			return
		}
		largest.hub.trimHistory(most / 2)
	}
}

// find returns the process that a selector names, a live one before one that ended. The error has a Connect code.
func (t *table) find(selector *processpb.ProcessSelector) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch by := selector.GetSelector().(type) {
	case *processpb.ProcessSelector_Pid:
		if p := t.byPID[int(by.Pid)]; p != nil {
			return p, nil
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", by.Pid))
	case *processpb.ProcessSelector_Tag:
		var found *process
		for _, p := range t.byPID {
			if p.info.GetTag() == by.Tag && p.info.Tag != nil && (found == nil || p.alive()) {
				found = p
			}
		}
		if found != nil {
			return found, nil
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with tag '%s' not found", by.Tag))
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("a process is named by pid or by tag"))
	}
}

// findAlive is find for calls that make no sense on an ended process.
func (t *table) findAlive(selector *processpb.ProcessSelector) (*process, error) {
	p, err := t.find(selector)
	if err == nil && !p.alive() {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d not found: it has ended", p.pid))
	}
	return p, err
}

// alive returns the live process with this pid, nil when there is none.
func (t *table) alive(pid int) *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byPID[pid]; p != nil && p.alive() {
		return p
	}
	return nil
}

// list returns the live processes in the order of their pids.
func (t *table) list() []*processpb.ProcessInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	infos := []*processpb.ProcessInfo{}
	for _, p := range t.byPID {
		if p.alive() {
			infos = append(infos, p.info)
		}
	}
	slices.SortFunc(infos, func(a, b *processpb.ProcessInfo) int { return int(a.Pid) - int(b.Pid) })
	return infos
}
