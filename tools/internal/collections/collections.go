// Package collections decides when a process of gVisor collects garbage.
package collections

import (
	"math"
	"runtime/debug"
	"time"
)

const (
	// startMaxBytes is what Go's runtime may hold before it collects all the same.
	startMaxBytes = 32 << 20
	// gcPercent is Go's own setting.
	gcPercent = 100
)

// Defer has this process collect no garbage for so long, and then as Go does by itself. A restore makes hardly any, but its heap grows
// from nothing: it was collected at every doubling, for a fifth of all that the restore took.
func Defer(until time.Duration) {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(startMaxBytes)
	time.AfterFunc(until, func() {
		debug.SetMemoryLimit(math.MaxInt64)
		debug.SetGCPercent(gcPercent)
	})
}
