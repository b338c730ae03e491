package process

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Whoever says how far it has come gets exactly what follows, from any byte on, also from inside of a character and from
// where the history begins by now.
func TestReplayFromEveryOffsetIsExact(t *testing.T) {
	const piece = "a€😀b"
	all := strings.Repeat(piece, 40)
	for pieceBytes := 1; pieceBytes <= len(piece)+1; pieceBytes++ {
		for _, limit := range []int{len(all), 100, 37, 5} {
			h := history{total: &atomic.Int64{}}
			for rest := all; rest != ""; rest = rest[min(pieceBytes, len(rest)):] {
				// Pieces of their own, as those of two streams are.
				h.add(channel(len(h.segments)%2), []byte(rest[:min(pieceBytes, len(rest))]))
			}
			h.trim(limit)
			for from := int64(0); from <= int64(len(all)); from++ {
				var got []byte
				replay, begins := h.replay(from)
				for _, segment := range replay {
					got = append(got, segment.data...)
				}
				if string(got) != all[begins:] || from >= h.dropped && begins != from || from < h.dropped && begins > h.dropped+3 {
					t.Fatalf("pieces of %d, %d dropped: from %d it begins at %d, %q", pieceBytes, h.dropped, from, begins, got)
				}
			}
		}
	}
}

// What a subscriber gets is in the order that offsets count in, however many write at the same time.
func TestSubscribersSeeTheOrderOfTheHistory(t *testing.T) {
	const pieces, writers = 2_000, 4
	h := hub{history: history{total: &atomic.Int64{}}}
	first, _ := h.subscribe(func() {}, 0)
	second, _ := h.subscribe(func() {}, 0)
	var wait sync.WaitGroup
	for writer := range writers {
		wait.Go(func() {
			for i := range pieces {
				h.publish(channel(writer%2), []byte{byte(writer), byte(i), byte(i >> 8)})
			}
		})
	}
	wait.Wait()
	var want []byte
	replay, _ := h.history.replay(0)
	for _, segment := range replay {
		want = append(want, segment.data...)
	}
	for name, sub := range map[string]*subscription{"first": first, "second": second} {
		var got []byte
		for event, _ := sub.take(); event != nil; event, _ = sub.take() {
			got = append(append(got, event.GetData().GetStdout()...), event.GetData().GetStderr()...)
		}
		if len(got) != 3*pieces*writers || !bytes.Equal(got, want) {
			t.Errorf("the %s has %d bytes, of %d, or in another order", name, len(got), len(want))
		}
	}
}
