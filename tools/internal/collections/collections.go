// Package collections decides when a process of gVisor collects garbage.
package collections

import (
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// startMaxBytes is what Go's runtime may hold before its first collection, which is not deferred any longer then.
	startMaxBytes = 32 << 20
	// gcPercent is Go's own setting.
	gcPercent = 100
)

// witness is heard of when a collection finds that nobody refers to it.
type witness struct{ _ *byte }

// Defer has this process collect no garbage for so long, or until it holds much, and then as Go does by itself. A restore makes hardly
// any, but its heap grows from nothing: it was collected at every doubling, for a fifth of all that the restore took.
func Defer(until time.Duration) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(startMaxBytes)
	var once sync.Once
	resume := func() {
		once.Do(func() {
			debug.SetMemoryLimit(math.MaxInt64)
			debug.SetGCPercent(gcPercent)
		})
	}
	time.AfterFunc(until, resume)
	// Above the limit Go would collect without a pause.
	runtime.AddCleanup(&witness{}, func(struct{}) { resume() }, struct{}{})
}
