package upstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestAPoolInUseDoesNotRest(t *testing.T) {
	pool := NewLimit(100).ToSandbox("127.0.0.1", nil)
	defer pool.Retire()
	port := listening(t)
	conn := get(t, pool, port)
	if pool.Rest(0) {
		t.Error("it rests with a connection in use")
	}
	conn.Keep()
	if pool.Rest(time.Hour) {
		t.Error("it rests a moment after its last use")
	}
	if !pool.Rest(0) || !pool.Rest(time.Hour) {
		t.Error("it does not rest with nothing but an idle connection, or not for long")
	}
	pool.Rouse()
	if again := get(t, pool, port); !again.Reused {
		t.Error("the idle connection has not outlived the rest")
	}
}

func TestWhoeverWantsAConnectionOfARestingPoolWakesItFirst(t *testing.T) {
	var pool *Pool
	var asked atomic.Int32
	woken := make(chan struct{})
	pool = NewLimit(100).ToSandbox("127.0.0.1", func(ctx context.Context) error {
		asked.Add(1)
		select {
		case <-woken:
			pool.Rouse()
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	defer pool.Retire()
	port := listening(t)
	get(t, pool, port).Keep()
	if !pool.Rest(0) {
		t.Fatal("it does not rest")
	}
	var connected sync.WaitGroup
	for range 8 {
		connected.Go(func() {
			conn, err := pool.Get(t.Context(), Port{Number: port})
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.Close()
		})
	}
	for asked.Load() < 8 {
		time.Sleep(time.Millisecond)
	}
	pool.mu.Lock()
	if pool.count != 1 {
		t.Errorf("%d connections, not only the idle one: somebody got through", pool.count)
	}
	pool.mu.Unlock()
	close(woken)
	connected.Wait()
}

func TestARestThatCannotBeEndedIsNoClosedPort(t *testing.T) {
	refused := errors.New("as the test wants")
	limit := NewLimit(100)
	pool := limit.ToSandbox("127.0.0.1", func(context.Context) error { return refused })
	defer pool.Retire()
	if !pool.Rest(0) {
		t.Fatal("it does not rest")
	}
	for name, take := range map[string]func(context.Context, Port) (*Conn, error){"Get": pool.Get, "Dial": pool.Dial} {
		if _, err := take(t.Context(), Port{Number: listening(t)}); !errors.Is(err, ErrAsleep) || !errors.Is(err, refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if open := limit.open.Load(); open != 0 {
		t.Errorf("%d connections are counted", open)
	}
}

func TestARestingPoolThatRetiresLetsNobodyWait(t *testing.T) {
	waiting := make(chan struct{})
	pool := NewLimit(100).ToSandbox("127.0.0.1", func(context.Context) error {
		<-waiting
		return nil
	})
	if !pool.Rest(0) {
		t.Fatal("it does not rest")
	}
	failed := make(chan error)
	go func() {
		_, err := pool.Get(t.Context(), Port{Number: 1})
		failed <- err
	}()
	pool.Retire()
	close(waiting)
	if err := <-failed; !errors.Is(err, ErrRetired) {
		t.Error(err)
	}
}
