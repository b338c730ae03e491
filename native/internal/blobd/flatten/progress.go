// Package flatten makes one flat EROFS file of an image's layers: read in parallel, applied in order, written once.
package flatten

import "sync"

// Phase of a conversion, as the protocol names it.
type Phase string

// The phases in their order.
const (
	Resolving   Phase = "resolving"
	Downloading Phase = "downloading"
	Converting  Phase = "converting"
	Done        Phase = "done"
)

// Snapshot is how far a conversion is. Bytes are those of the layers as stored (compressed); the total is 0 while unknown.
type Snapshot struct {
	Phase                   Phase
	DoneBytes, TotalBytes   uint64
	LayersDone, LayersTotal uint32
}

// Progress is written by one conversion and read by any number of watchers.
type Progress struct {
	mu  sync.Mutex
	now Snapshot
}

// Snapshot reads the current state.
func (p *Progress) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.Phase == "" {
		return Snapshot{Phase: Resolving}
	}
	return p.now
}

func (p *Progress) update(change func(*Snapshot)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.now)
}

// addBytes counts bytes of layers; a layer that starts over takes its bytes back with a negative number.
func (p *Progress) addBytes(n int64) {
	p.update(func(s *Snapshot) { s.DoneBytes = uint64(int64(s.DoneBytes) + n) })
}
