// Package upstream has the edge's connections into sandboxes and to aenvd's API.
package upstream

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxConnections of one pool, to all ports; far above what clients use, a bound all the same.
	maxConnections = 4096
	// maxOfPort: visitors of one port leave room for those of others.
	maxOfPort = 2048
	// agentShare is kept free for the agent: its owner gets in however many visitors there are.
	agentShare = 256
	dialTime   = 30 * time.Second
	// wakeTries: one that has been woken may stand still again before its connection is taken, but not again and again.
	wakeTries = 5
)

// dialWaits are between attempts to connect: a service inside may just be opening its port.
var dialWaits = []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond}

var (
	// ErrRetired: this incarnation has ended.
	ErrRetired = errors.New("this incarnation of the sandbox has ended")
	// ErrClosed: nobody listens. Nothing was sent.
	ErrClosed = errors.New("nobody listens there")
	ErrFull   = errors.New("there are as many connections as there may be")
	// ErrAsleep: this incarnation stands still and could not be woken. Nothing was sent.
	ErrAsleep = errors.New("the sandbox stands still and could not be woken")
)

// KeepAlive finds clients that are gone without a word.
var KeepAlive = probedAfter(time.Minute)

// seldom is for connections into sandboxes: a probe costs the runtime of one that stands still two milliseconds, so none is sent for as
// long as a connection may be idle.
var seldom = probedAfter(idleLife + time.Minute)

// probedAfter: a peer that has said nothing for so long is asked, then every 75 s, nine times.
func probedAfter(idle time.Duration) net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: idle, Interval: 75 * time.Second, Count: 9}
}

// Port is where in a sandbox a connection leads to.
type Port struct {
	Number int
	// AgentKey opens the agent's way to services that listen on the sandbox's loopback only.
	AgentKey string
}

// Pool is the connections to one incarnation of a sandbox, or to the API. After a resume the peer's TCP state is another, and a
// connection of the old incarnation would hang.
type Pool struct {
	network, address string
	limit            *Limit
	// wake returns when an incarnation that stands still has been roused.
	wake    func(context.Context) error
	ctx     context.Context
	cancel  context.CancelFunc
	dialing sync.WaitGroup

	mu      sync.Mutex
	retired bool
	// resting: it stands still. usedAt is when a connection was last taken or given back.
	resting bool
	usedAt  time.Time
	// count is of all connections, those being made included.
	count int
	// counts are those of each port.
	counts map[int]int
	conns  map[*Conn]struct{}
	idle   map[int][]*Conn
	// keepsOpen are ports whose service has answered on a connection that had been kept.
	keepsOpen map[int]bool
	sweep     *time.Timer
}

// ToSandbox connects to the ports of an address. wake is for one that stands still.
func (l *Limit) ToSandbox(address string, wake func(context.Context) error) *Pool {
	p := newPool(l, "tcp", address)
	p.wake = wake
	return p
}

// ToSocket connects to a unix socket.
func (l *Limit) ToSocket(path string) *Pool { return newPool(l, "unix", path) }

func newPool(limit *Limit, network, address string) *Pool {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{network: network, address: address, limit: limit, ctx: ctx, cancel: cancel, counts: map[int]int{},
		conns: map[*Conn]struct{}{}, idle: map[int][]*Conn{}, keepsOpen: map[int]bool{}}
	limit.add(p)
	return p
}

// Retire ends all connections at once, makes none any more, and returns when none is on its way.
func (p *Pool) Retire() {
	p.mu.Lock()
	p.retired = true
	open := p.conns
	p.conns = map[*Conn]struct{}{}
	if p.sweep != nil {
		p.sweep.Stop()
	}
	p.mu.Unlock()
	p.cancel()
	p.limit.remove(p)
	for conn := range open {
		conn.reset()
	}
	// Those in use are ended by their users.
	p.dropIdle()
	p.dialing.Wait()
}

func (p *Pool) Retired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired
}

// Rest lets nobody have a connection who has not woken the sandbox, unless one is in use, or was a shorter time ago than after; then
// it is false. Idle connections stay.
func (p *Pool) Rest(after time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resting {
		return true
	}
	idle := 0
	for _, kept := range p.idle {
		idle += len(kept)
	}
	if p.count > idle || time.Since(p.usedAt) < after {
		return false
	}
	p.resting = true
	return true
}

// Rouse ends a rest.
func (p *Pool) Rouse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resting = false
}

// awake holds the lock when it returns without an error. Errors: ErrAsleep, the context's.
func (p *Pool) awake(ctx context.Context) error {
	p.mu.Lock()
	for range wakeTries {
		if !p.resting || p.retired {
			p.usedAt = time.Now()
			return nil
		}
		p.mu.Unlock()
		if err := p.wake(ctx); err != nil {
			return errors.Join(ErrAsleep, err)
		}
		p.mu.Lock()
	}
	p.mu.Unlock()
	return ErrAsleep
}

// Get is an idle connection, or a new one. Errors: ErrRetired, ErrClosed, ErrFull, ErrAsleep, the context's.
func (p *Pool) Get(ctx context.Context, port Port) (*Conn, error) {
	return p.get(ctx, port, false)
}

// GetSettled is Get for a request that cannot be sent twice. A service may close a connection behind its answer without a word, and
// for a moment that is not to be seen: so, of a service that is not known to keep them open, only one that has been idle for a while.
func (p *Pool) GetSettled(ctx context.Context, port Port) (*Conn, error) {
	return p.get(ctx, port, p.network == "tcp" && port.Number != agentPort)
}

func (p *Pool) get(ctx context.Context, port Port, onlySettled bool) (*Conn, error) {
	for {
		if err := p.awake(ctx); err != nil {
			return nil, err
		}
		conn := p.takeIdle(port.Number, onlySettled)
		p.mu.Unlock()
		if conn == nil {
			return p.Dial(ctx, port)
		}
		p.limit.idle.Add(-1)
		if conn.isQuiet() {
			conn.Reused = true
			return conn, nil
		}
		p.closedBehindAnswer(conn)
		conn.Close()
	}
}

// Dial makes a new connection. Errors as those of Get.
func (p *Pool) Dial(ctx context.Context, port Port) (*Conn, error) {
	if err := p.begin(ctx, port.Number); err != nil {
		return nil, err
	}
	defer p.dialing.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(p.ctx, cancel)()
	defer cancel()
	conn, err := p.dialPatiently(ctx, port)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && !p.retired {
		p.conns[conn] = struct{}{}
		return conn, nil
	}
	p.uncount(port.Number)
	if conn != nil {
		conn.reset()
	}
	if p.retired {
		err = ErrRetired
	}
	return nil, err
}

// begin counts a connection that is to be made. Errors: ErrRetired, ErrFull, ErrAsleep, the context's.
func (p *Pool) begin(ctx context.Context, port int) error {
	isCommon := p.network == "tcp" && port != agentPort
	isTaken := p.limit.take(isCommon)
	if err := p.awake(ctx); err != nil {
		if isTaken {
			p.limit.give()
		}
		return err
	}
	defer p.mu.Unlock()
	isFull := p.count >= maxConnections ||
		isCommon && (p.counts[port] >= maxOfPort || p.count-p.counts[agentPort] >= maxConnections-agentShare)
	if isTaken && !isFull && !p.retired {
		p.count++
		p.counts[port]++
		p.dialing.Add(1)
		return nil
	}
	if isTaken {
		p.limit.give()
	}
	if p.retired {
		return ErrRetired
	}
	return ErrFull
}

func (p *Pool) dialPatiently(ctx context.Context, port Port) (*Conn, error) {
	for attempt := 0; ; attempt++ {
		conn, err := p.dialOnce(ctx, port)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case isOutOfFiles(err) && attempt == len(dialWaits):
			return nil, errors.Join(ErrFull, err)
		case isOutOfFiles(err):
			p.limit.dropIdle()
		case p.network == "unix" || attempt == len(dialWaits):
			return nil, errors.Join(ErrClosed, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(dialWaits[attempt]):
		}
	}
}

// dialOnce goes through the agent where the port itself refuses: its service may listen on the loopback inside.
func (p *Pool) dialOnce(ctx context.Context, port Port) (*Conn, error) {
	conn, err := p.connect(ctx, port)
	if err == nil || !errors.Is(err, syscall.ECONNREFUSED) || port.AgentKey == "" || port.Number == agentPort {
		return conn, err
	}
	tunnel, agentErr := p.connect(ctx, Port{Number: agentPort})
	if isOutOfFiles(agentErr) {
		return nil, agentErr
	}
	if agentErr != nil {
		return nil, err
	}
	tunnel.port = port.Number
	if err := tunnel.openTunnel(ctx, port); err != nil {
		tunnel.reset()
		return nil, err
	}
	return tunnel, nil
}

func (p *Pool) connect(ctx context.Context, port Port) (*Conn, error) {
	dialer := net.Dialer{Timeout: dialTime, KeepAliveConfig: seldom}
	address := p.address
	if p.network == "tcp" {
		address = net.JoinHostPort(p.address, portText(port.Number))
		dialer.Control = unpaced
	}
	raw, err := dialer.DialContext(ctx, p.network, address)
	if err != nil {
		return nil, err
	}
	return newConn(p, port.Number, raw), nil
}

// unpaced: a sandbox is on this host, so there is no path to spare. A machine may be set to BBR, which measures the bandwidth and
// waits between packets; over a link without length that costs a third of what an upload could have. Reno is in every kernel.
func unpaced(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		// Where it may not be set the machine's own is only slower.
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	})
}

// forget is told once of every connection that has ended.
func (p *Pool) forget(conn *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.usedAt = time.Now()
	delete(p.conns, conn)
	p.uncount(conn.port)
}

// uncount is the end of what begin has begun. Precondition: the pool is locked.
func (p *Pool) uncount(port int) {
	p.count--
	if p.counts[port]--; p.counts[port] == 0 {
		delete(p.counts, port)
	}
	p.limit.give()
}
