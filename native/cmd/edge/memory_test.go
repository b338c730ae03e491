package main

import (
	"runtime/debug"
	"testing"
)

func TestMemoryIsBounded(t *testing.T) {
	for machine, want := range map[uint64]int64{1 << 30: 256 << 20, 8 << 30: 1 << 30, 256 << 30: 32 << 30} {
		if got := memoryLimit(machine); got != want {
			t.Errorf("%d of %d, not %d", got, machine, want)
		}
	}
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "1GiB")
	boundMemory()
	if debug.SetMemoryLimit(-1) != before {
		t.Error("a limit that was set was replaced")
	}
	t.Setenv("GOMEMLIMIT", "")
	boundMemory()
	if debug.SetMemoryLimit(-1) == before {
		t.Error("there is no limit")
	}
}
