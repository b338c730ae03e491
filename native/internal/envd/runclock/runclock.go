// Package runclock measures running time: time during which this machine was not paused.
//
// After a pause the guest's clocks, the monotonic one too, have moved on by the length of the pause, and every ordinary
// timer fires at once. Deadlines that must survive a pause are kept here instead. The clock advances in short steps and
// credits a step that took much longer than asked for with little more than what was asked. It runs only while timers
// exist, so that an idle agent never wakes up.
//
// Nobody has to tell it of a pause. One whose end is followed by an init and one that the runtime makes in place, seconds or
// hours long, look the same: a step that ended late. Each costs a deadline step and slack at the most.
package runclock

import (
	"sync"
	"time"
)

const (
	// step is the longest sleep between two looks at the clock.
	step = 500 * time.Millisecond
	// slack is how much later than asked a sleep may end and still count in full (a busy machine, not a pause).
	slack = 250 * time.Millisecond
)

// Clock holds timers that count running time. The zero value is ready for use.
type Clock struct {
	// now reads the machine's clock; nil is time.Now. Tests replace it before first use.
	now func() time.Time

	mu     sync.Mutex
	timers map[*Timer]struct{}
	wake   chan struct{}
	// running tells whether the loop runs; the three below mean something only then.
	running bool
	elapsed time.Duration
	last    time.Time
	// asked is what is left of the sleep that the loop is in.
	asked time.Duration
}

// Timer is one pending call.
type Timer struct {
	clock *Clock
	at    time.Duration
	call  func()
}

// AfterFunc calls call in its own goroutine once d of running time has passed.
func (c *Clock) AfterFunc(d time.Duration, call func()) *Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timers == nil {
		c.timers = map[*Timer]struct{}{}
		c.wake = make(chan struct{}, 1)
	}
	if !c.running {
		c.running = true
		c.last = c.read()
		go c.run()
	} else {
		c.advance()
		c.rouse()
	}
	timer := &Timer{clock: c, at: c.elapsed + d, call: call}
	c.timers[timer] = struct{}{}
	return timer
}

// Stop takes the timer back and tells whether that was in time.
func (t *Timer) Stop() bool {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	_, pending := c.timers[t]
	delete(c.timers, t)
	if pending && len(c.timers) == 0 {
		c.rouse()
	}
	return pending
}

// run sleeps from timer to timer and ends when there is none left.
func (c *Clock) run() {
	for {
		c.mu.Lock()
		c.advance()
		for _, timer := range c.takeDue() {
			go timer.call()
		}
		if len(c.timers) == 0 {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.asked = c.nextSleep()
		sleep := time.NewTimer(c.asked)
		c.mu.Unlock()

		select {
		case <-sleep.C:
		case <-c.wake:
			sleep.Stop()
		}
	}
}

// advance credits the time since the last look, but not a pause in it.
func (c *Clock) advance() {
	now := c.read()
	passed := max(0, now.Sub(c.last))
	c.elapsed += min(passed, c.asked+slack)
	c.asked = max(0, c.asked-passed)
	c.last = now
}

func (c *Clock) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Clock) read() time.Time {
	if c.now != nil {
		return c.now()
	}
	return time.Now()
}

func (c *Clock) nextSleep() time.Duration {
	sleep := step
	for timer := range c.timers {
		sleep = min(sleep, max(0, timer.at-c.elapsed))
	}
	return sleep
}

func (c *Clock) takeDue() []*Timer {
	var due []*Timer
	for timer := range c.timers {
		if timer.at <= c.elapsed {
			due = append(due, timer)
			delete(c.timers, timer)
		}
	}
	return due
}
