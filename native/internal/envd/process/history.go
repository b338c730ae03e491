package process

import (
	"sync/atomic"
	"unicode/utf8"
)

const (
	// historyBytes is how much of a process's latest output is kept for clients that attach later.
	historyBytes = 256 << 10
	// historiesBytes bounds what all processes together keep.
	historiesBytes = 8 << 20
	// segmentBytes is up to which size small pieces are kept as one.
	segmentBytes = pipeChunkBytes
)

// history is the latest output of one process, in order.
type history struct {
	// total is what all histories hold.
	total    *atomic.Int64
	segments []segment
	bytes    int
	// dropped is how much there was before.
	dropped int64
}

type segment struct {
	from channel
	data []byte
}

// add appends a piece, which must not be changed afterwards, and drops from the front what is too much.
func (h *history) add(from channel, data []byte) {
	last := len(h.segments) - 1
	if last >= 0 && h.segments[last].from == from && len(h.segments[last].data)+len(data) <= segmentBytes {
		// Whoever holds the segment as it was does not look behind its end.
		h.segments[last].data = append(h.segments[last].data, data...)
	} else {
		h.segments = append(h.segments, segment{from, data})
	}
	h.grow(len(data))
	h.trim(historyBytes)
}

// trim drops the oldest segments until at most limit bytes are left.
func (h *history) trim(limit int) {
	for h.bytes > limit {
		oldest := len(h.segments[0].data)
		h.grow(-oldest)
		h.dropped += int64(oldest)
		h.segments[0] = segment{}
		h.segments = h.segments[1:]
	}
}

func (h *history) grow(bytes int) {
	h.bytes += bytes
	h.total.Add(int64(bytes))
}

// replay lists what is kept from an offset on, and says at which it begins: offsets count the bytes of all output since the
// process's start. Where bytes are missing before it, it does not begin inside of a character.
func (h *history) replay(from int64) (replay []segment, begins int64) {
	begins = h.dropped
	for _, piece := range h.segments {
		data := piece.data
		switch {
		case len(replay) > 0:
		case begins+int64(len(data)) <= from:
			begins += int64(len(data))
			continue
		case from > begins:
			data = data[from-begins:]
			begins = from
		case from < h.dropped:
			data = fromCharacter(data)
			begins += int64(len(piece.data) - len(data))
		}
		replay = append(replay, segment{piece.from, data})
	}
	return replay, begins
}

// fromCharacter drops the rest of a character that began before data.
func fromCharacter(data []byte) []byte {
	for i := range min(len(data), utf8.UTFMax-1) {
		if utf8.RuneStart(data[i]) {
			return data[i:]
		}
	}
	return data
}
