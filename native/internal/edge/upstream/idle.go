package upstream

import (
	"slices"
	"time"
)

const (
	maxIdle = 64
	// idleLife is a little shorter than that of clients' connections, and than what the agent allows its own.
	idleLife   = 610 * time.Second
	sweepEvery = 15 * time.Second
	// settleTime is for a service to close a connection behind its answer.
	settleTime = 50 * time.Millisecond
)

// takeIdle is nil when there is none. Precondition: the pool is locked.
func (p *Pool) takeIdle(port int, onlySettled bool) *Conn {
	kept := p.idle[port]
	at := len(kept) - 1
	if at >= 0 && onlySettled && !p.keepsOpen[port] {
		// The one that has been there for longest.
		at = 0
		if time.Since(kept[at].idleSince) < settleTime {
			return nil
		}
	}
	if at < 0 {
		return nil
	}
	conn := kept[at]
	p.idle[port] = slices.Delete(kept, at, at+1)
	return conn
}

// closedBehindAnswer is told of a connection that its service has closed while it was idle.
func (p *Pool) closedBehindAnswer(conn *Conn) {
	if time.Since(conn.idleSince) < settleTime {
		p.mu.Lock()
		delete(p.keepsOpen, conn.port)
		p.mu.Unlock()
	}
}

// keep takes a connection back whose answer was whole.
func (p *Pool) keep(conn *Conn) {
	p.mu.Lock()
	p.usedAt = time.Now()
	if conn.Reused {
		p.keepsOpen[conn.port] = true
	}
	kept := p.idle[conn.port]
	isKept := !p.retired && len(kept) < maxIdle && p.limit.idle.Load() < p.limit.mostIdle
	if isKept {
		p.limit.idle.Add(1)
		conn.idleSince = time.Now()
		p.idle[conn.port] = append(kept, conn)
		if p.sweep == nil {
			p.sweep = time.AfterFunc(sweepEvery, p.dropDead)
		}
	}
	p.mu.Unlock()
	if !isKept {
		conn.Close()
	}
}

// dropDead closes idle connections that their service has closed, or nobody has wanted for long.
func (p *Pool) dropDead() {
	p.mu.Lock()
	var dead []*Conn
	isEmpty := true
	for port, kept := range p.idle {
		alive := kept[:0:0]
		for _, conn := range kept {
			if time.Since(conn.idleSince) < idleLife && conn.isQuiet() {
				alive = append(alive, conn)
			} else {
				dead = append(dead, conn)
			}
		}
		if len(alive) == 0 {
			delete(p.idle, port)
			continue
		}
		p.idle[port] = alive
		isEmpty = false
	}
	if isEmpty || p.retired {
		p.sweep = nil
	} else {
		p.sweep.Reset(sweepEvery)
	}
	p.mu.Unlock()
	p.end(dead)
}

// dropIdle closes those that nobody uses.
func (p *Pool) dropIdle() {
	p.mu.Lock()
	var dropped []*Conn
	for _, kept := range p.idle {
		dropped = append(dropped, kept...)
	}
	clear(p.idle)
	p.mu.Unlock()
	p.end(dropped)
}

// end closes connections that were idle.
func (p *Pool) end(dropped []*Conn) {
	p.limit.idle.Add(-int64(len(dropped)))
	for _, conn := range dropped {
		conn.Close()
	}
}
