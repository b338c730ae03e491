package main

import (
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

const (
	// memoryShare of the machine's is what the edge may take before it spends more of its time on collecting.
	memoryShare = 8
	leastMemory = 256 << 20
)

// boundMemory: without a limit the heap doubles before it is collected, and what clients make it hold counts twice. Set
// GOMEMLIMIT stands.
func boundMemory() {
	var machine unix.Sysinfo_t
	if os.Getenv("GOMEMLIMIT") != "" || unix.Sysinfo(&machine) != nil {
		return
	}
	debug.SetMemoryLimit(memoryLimit(machine.Totalram * uint64(machine.Unit)))
}

// memoryLimit is in bytes, as is the machine's memory.
func memoryLimit(machine uint64) int64 {
	return int64(max(machine/memoryShare, leastMemory))
}
