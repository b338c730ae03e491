package process

import (
	"testing"

	"aenv/native/internal/envd/runclock"
)

// An ended process can be asked about for one whole interval, and for two at most, whoever else ends.
func TestEndsAreForgottenOnceTheyHaveBeenKept(t *testing.T) {
	var ends table
	clock := &runclock.Clock{}
	end := func(pid int) {
		p := &process{pid: pid}
		p.hub.history.total = &ends.kept
		ends.add(p)
		ends.retire(p, clock)
	}
	expect := func(when string, first, last int) {
		t.Helper()
		for pid := range 3 * endsKept {
			if _, known := ends.byPID[pid]; known != (pid >= first && pid <= last) {
				t.Fatalf("%s: process %d: known is %t", when, pid, known)
			}
		}
	}
	end(1)
	end(2)
	ends.sweep(clock)
	end(3)
	expect("after one sweep", 1, 3)
	ends.sweep(clock)
	expect("after another", 3, 3)
	for pid := 4; pid < 4+endsKept; pid++ {
		end(pid)
	}
	expect("when there are too many", 4, 3+endsKept)
	ends.sweep(clock)
	ends.sweep(clock)
	expect("at last", 0, -1)
	if ends.sweeping {
		t.Error("nobody is kept, and the clock goes on")
	}
}
