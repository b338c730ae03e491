package collections

import (
	"math"
	"runtime"
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

func requireDeferred(t *testing.T) {
	t.Helper()
	if percent, limitBytes := read(); percent != math.MaxUint64 || limitBytes != startMaxBytes {
		t.Errorf("while it starts: %d %%, %d bytes", percent, limitBytes)
	}
}

func awaitGoes(t *testing.T) {
	t.Helper()
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

// A sandbox that has started collects as gVisor's own does: its memory is bounded by what it holds.
func TestCollectionsAreOnlyDeferred(t *testing.T) {
	Defer(time.Second)
	requireDeferred(t)
	awaitGoes(t)
}

// One whose start takes much memory is not held up by collections that free nothing.
func TestTheFirstCollectionEndsTheDelay(t *testing.T) {
	Defer(time.Hour)
	requireDeferred(t)
	held := make([][]byte, 0, 64)
	for range cap(held) {
		held = append(held, make([]byte, startMaxBytes/32))
	}
	awaitGoes(t)
	runtime.KeepAlive(held)
}
