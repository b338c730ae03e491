package upstream

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// Limit is of the connections of all pools together: each is an open file of this process. Idle ones make room for new ones.
type Limit struct {
	// most connections; common is what those may take that have no share kept free for them.
	most, common int64
	mostIdle     int64
	open, idle   atomic.Int64

	mu    sync.Mutex
	pools map[*Pool]struct{}
}

// NewLimit allows so many connections. An eighth is kept free for agents and the API, a quarter may be idle.
func NewLimit(most int) *Limit {
	return &Limit{most: int64(most), common: int64(most - most/8), mostIdle: int64(max(1, most/4)), pools: map[*Pool]struct{}{}}
}

// take is one connection more, which is counted until give.
func (l *Limit) take(isCommon bool) bool {
	most := l.most
	if isCommon {
		most = l.common
	}
	for range 2 {
		if l.open.Add(1) <= most {
			return true
		}
		l.open.Add(-1)
		l.dropIdle()
	}
	return false
}

func (l *Limit) give() { l.open.Add(-1) }

// dropIdle closes all connections that nobody uses.
func (l *Limit) dropIdle() {
	if l.idle.Load() == 0 {
		return
	}
	l.mu.Lock()
	pools := slices.Collect(maps.Keys(l.pools))
	l.mu.Unlock()
	for _, pool := range pools {
		pool.dropIdle()
	}
}

func (l *Limit) add(pool *Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pools[pool] = struct{}{}
}

func (l *Limit) remove(pool *Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pools, pool)
}

// isOutOfFiles: this process, or the machine, has no file left, which says nothing of the other side.
func isOutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
