package edge

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// reservedFiles are for listening, logs, and the pipes through which the kernel moves bytes.
	reservedFiles = 2048
	// mostConnections where the system sets no limit that counts.
	mostConnections = 500_000
	logEvery        = 10 * time.Second
)

// ConnectionLimit is how many clients may be connected at once: each takes one open file, and upstream
// connections have the same limit.
func ConnectionLimit() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return limitOf(16_384)
	}
	return limitOf(files.Cur)
}

func limitOf(openFiles uint64) int {
	return int(min(mostConnections, max(1, (openFiles-min(reservedFiles, openFiles/4))/2)))
}

// limit cuts clients beyond it off at once. The log says so, not once for each. No address has more than half of all, so that
// nobody alone shuts others out, but for proxies on this host.
type limit struct {
	most int
	log  *slog.Logger

	mu       sync.Mutex
	open     int
	peers    map[netip.Prefix]int
	dropped  int
	loggedAt time.Time
}

func newLimit(most int, log *slog.Logger) *limit {
	return &limit{most: most, log: log, peers: map[netip.Prefix]int{}}
}

// of limits a listener, together with all others of this limit.
func (l *limit) of(listener net.Listener) net.Listener { return &limitedListener{listener, l} }

type limitedListener struct {
	net.Listener
	limit *limit
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if ok {
			if peer := peerOf(tcp.RemoteAddr()); l.limit.enter(peer) {
				return &countedConn{TCPConn: tcp, limit: l.limit, peer: peer}, nil
			}
		}
		_ = conn.Close()
		l.limit.drop()
	}
}

// peerOf is an address as far as it is one client's: of IPv6 everybody has 64 bits.
func peerOf(address net.Addr) netip.Prefix {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() && !ip.IsLoopback() {
		bits = 64
	}
	peer, _ := ip.Prefix(bits)
	return peer
}

// enter counts a client, unless there is no room for it.
func (l *limit) enter(peer netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most || !peer.Addr().IsLoopback() && l.peers[peer] >= max(1, l.most/2) {
		return false
	}
	l.open++
	l.peers[peer]++
	return true
}

func (l *limit) leave(peer netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.peers[peer]--; l.peers[peer] == 0 {
		delete(l.peers, peer)
	}
}

func (l *limit) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped++
	if time.Since(l.loggedAt) < logEvery {
		return
	}
	l.log.Error("all connections are in use, or one address has half of them: new clients are cut off; a higher limit of open files (ulimit -n) allows more",
		"connections", l.most, "count", l.dropped)
	l.loggedAt, l.dropped = time.Now(), 0
}

// countedConn is a TCP connection in every other way, so that the kernel can move its bytes.
type countedConn struct {
	*net.TCPConn
	limit  *limit
	peer   netip.Prefix
	closed atomic.Bool
}

func (c *countedConn) Close() error {
	if !c.closed.Swap(true) {
		c.limit.leave(c.peer)
	}
	return c.TCPConn.Close()
}
