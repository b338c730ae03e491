package upstream

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listening is a port that takes connections and says nothing.
func listening(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

func get(t *testing.T, pool *Pool, port int) *Conn {
	t.Helper()
	conn, err := pool.Get(t.Context(), Port{Number: port})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestTheLimitHoldsForAllPoolsTogetherAndIdleConnectionsMakeRoom(t *testing.T) {
	limit := NewLimit(8)
	one, two := limit.ToSandbox("127.0.0.1", nil), limit.ToSandbox("127.0.0.1", nil)
	defer two.Retire()
	port := listening(t)
	var kept []*Conn
	for range 4 {
		kept = append(kept, get(t, one, port))
	}
	for _, conn := range kept {
		conn.Keep()
	}
	if limit.open.Load() != 2 || limit.idle.Load() != 2 {
		t.Errorf("%d open, %d idle: a quarter may be", limit.open.Load(), limit.idle.Load())
	}
	var used []*Conn
	for range 7 {
		used = append(used, get(t, two, port))
	}
	if idle := limit.idle.Load(); idle != 0 {
		t.Errorf("%d idle ones stay in the way", idle)
	}
	if _, err := one.Get(t.Context(), Port{Number: port}); !errors.Is(err, ErrFull) {
		t.Errorf("one too many: %v", err)
	}
	if !limit.take(false) {
		t.Error("agents and the API have no share")
	}
	if limit.take(false) {
		t.Error("there is no end for agents and the API")
	}
	limit.give()
	used[0].Abort()
	get(t, one, port).Keep()
	one.Retire()
	for _, conn := range used[1:] {
		conn.Close()
	}
	if limit.open.Load() != 0 || limit.idle.Load() != 0 || len(limit.pools) != 1 {
		t.Errorf("%d open, %d idle, %d pools are left", limit.open.Load(), limit.idle.Load(), len(limit.pools))
	}
}

func TestConnectionsIntoSandboxesAreNotPacedHoweverTheMachineIsSet(t *testing.T) {
	pool := NewLimit(8).ToSandbox("127.0.0.1", nil)
	defer pool.Retire()
	conn := get(t, pool, listening(t))
	control := ""
	if err := conn.rawConn().Control(func(fd uintptr) {
		control, _ = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}); err != nil {
		t.Fatal(err)
	}
	if control != "reno" {
		t.Errorf("congestion control is %q", control)
	}
	conn.Close()
}

// A probe would wake the runtime of a sandbox that stands still.
func TestConnectionsIntoSandboxesAreNotProbedWhileTheyMayBeIdle(t *testing.T) {
	pool := NewLimit(8).ToSandbox("127.0.0.1", nil)
	defer pool.Retire()
	conn := get(t, pool, listening(t))
	defer conn.Close()
	var idleSeconds int
	if err := conn.rawConn().Control(func(fd uintptr) {
		idleSeconds, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
	}); err != nil {
		t.Fatal(err)
	}
	if idle := time.Duration(idleSeconds) * time.Second; idle <= idleLife {
		t.Errorf("the first probe comes after %v, and a connection is kept for %v", idle, idleLife)
	}
}

func TestVisitorsOfAPortLeaveRoomForOthersAndForTheAgent(t *testing.T) {
	pool := NewLimit(100_000).ToSandbox("127.0.0.1", nil)
	begin := func(port, times int) (begun int) {
		for range times {
			if pool.begin(t.Context(), port) == nil {
				begun++
				pool.dialing.Done()
			}
		}
		return begun
	}
	for _, part := range []struct{ port, wanted int }{
		{3000, maxOfPort}, {3001, maxConnections - agentShare - maxOfPort}, {3002, 0}, {agentPort, agentShare},
	} {
		if begun := begin(part.port, maxConnections); begun != part.wanted {
			t.Errorf("port %d has %d connections, not %d", part.port, begun, part.wanted)
		}
	}
}

// Whatever has taken all files, it is not said that nobody listens.
func TestNoFileLeftIsNoClosedPort(t *testing.T) {
	limit := NewLimit(100)
	pool := limit.ToSandbox("127.0.0.1", nil)
	defer pool.Retire()
	port := listening(t)
	get(t, pool, port).Keep()
	restore := takeAllFiles(t)
	_, err := pool.Dial(t.Context(), Port{Number: port})
	restore()
	if !errors.Is(err, ErrFull) || errors.Is(err, ErrClosed) {
		t.Errorf("without files: %v", err)
	}
	if limit.open.Load() != 0 {
		t.Errorf("%d connections are open: idle ones were to make room", limit.open.Load())
	}
	get(t, pool, port).Close()
}

// takeAllFiles leaves this process none, not even those that it closes.
func takeAllFiles(t *testing.T) (restore func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
	}
}
