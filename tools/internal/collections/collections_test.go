package collections

import (
	"math"
	"runtime/metrics"
	"testing"
	"time"
)

// read returns what Go's collector goes by: its percentage (off: the largest number there is) and its limit.
func read() (percent, limitBytes uint64) {
	samples := []metrics.Sample{{Name: "/gc/gogc:percent"}, {Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}

// A sandbox that has started collects as gVisor's own does: its memory is bounded by what it holds.
func TestCollectionsAreOnlyDeferred(t *testing.T) {
	Defer(time.Second)
	if percent, limitBytes := read(); percent != math.MaxUint64 || limitBytes != startMaxBytes {
		t.Errorf("while it starts: %d %%, %d bytes", percent, limitBytes)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		percent, limitBytes := read()
		if percent == gcPercent && limitBytes == math.MaxInt64 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("afterwards: %d %%, %d bytes", percent, limitBytes)
		}
	}
}
