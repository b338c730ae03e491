package runclock

import (
	"sync"
	"testing"
	"time"
)

// jumpClock is the machine's clock with pauses added to it.
type jumpClock struct {
	mu    sync.Mutex
	extra time.Duration
}

func (j *jumpClock) now() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return time.Now().Add(j.extra)
}

func (j *jumpClock) pause(d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.extra += d
}

// SNAP-16: a pause of an hour costs a deadline at most a step and its slack.
func TestSNAP16PauseDoesNotFireTimers(t *testing.T) {
	jump := &jumpClock{}
	clock := &Clock{now: jump.now}
	fired := make(chan string, 2)
	long := clock.AfterFunc(10*time.Second, func() { fired <- "long" })
	defer long.Stop()
	jump.pause(time.Hour)
	clock.AfterFunc(3*time.Second, func() { fired <- "short" })
	select {
	case name := <-fired:
		if name != "short" {
			t.Fatalf("the %s timer fired first", name)
		}
	case <-time.After(8 * time.Second):
		t.Fatal("no timer fired")
	}
	if !long.Stop() {
		t.Fatal("the pause was counted")
	}
}

func TestFiresOnTimeAndStopsRunningWhenIdle(t *testing.T) {
	clock := &Clock{}
	start := time.Now()
	fired := make(chan struct{})
	clock.AfterFunc(120*time.Millisecond, func() { close(fired) })
	<-fired
	if took := time.Since(start); took < 100*time.Millisecond || took > time.Second {
		t.Fatalf("fired after %v, asked for 120ms", took)
	}
	timer := clock.AfterFunc(time.Hour, func() {})
	timer.Stop()
	deadline := time.Now().Add(5 * time.Second)
	for {
		clock.mu.Lock()
		running := clock.running
		clock.mu.Unlock()
		if !running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the clock goes on ticking without timers")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// SNAP-16: a machine that its host stops for some seconds again and again, and nobody tells the agent.
func TestSNAP16ManyShortPausesCostLittleEach(t *testing.T) {
	jump := &jumpClock{}
	clock := &Clock{now: jump.now}
	const deadline, pauses, pause = 5 * time.Second, 3, 4 * time.Second
	fired := make(chan struct{})
	start := time.Now()
	clock.AfterFunc(deadline, func() { close(fired) })
	for range pauses {
		time.Sleep(600 * time.Millisecond)
		jump.pause(pause)
	}
	<-fired
	if ran, least := time.Since(start), deadline-pauses*time.Second; ran < least || ran > 3*deadline {
		t.Fatalf("fired after %v of running time, asked for %v", ran, deadline)
	}
}

// A timer armed in the middle of another one's sleep still gets its full time.
func TestArmedDuringASleep(t *testing.T) {
	clock := &Clock{}
	defer clock.AfterFunc(time.Hour, func() {}).Stop()
	time.Sleep(500 * time.Millisecond)
	start := time.Now()
	fired := make(chan struct{})
	clock.AfterFunc(700*time.Millisecond, func() { close(fired) })
	<-fired
	if took := time.Since(start); took < 650*time.Millisecond {
		t.Fatalf("fired after %v, asked for 700ms", took)
	}
}
