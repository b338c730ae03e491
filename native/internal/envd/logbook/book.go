// Package logbook keeps what happens in a sandbox until its node has taken it: what the agent does, which programs it
// started and what they wrote. It is bounded in bytes and in the rate of output it takes, so that a program that writes
// without end costs next to nothing.
package logbook

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Level is one of E2B's four levels of a log entry.
type Level string

// The levels that the agent uses.
const (
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Fields say more about an entry, by name.
type Fields map[string]string

const (
	// bookBytes bounds the encoded entries.
	bookBytes = 512 << 10
	// entryOverheadBytes is what an entry costs beside its text.
	entryOverheadBytes = 64
	// messageMaxBytes bounds the text of one entry and the value of one field.
	messageMaxBytes = 4 << 10
	// Entries of output may take outputBurstBytes at once and outputBytesPerSecond in the long run: so much that a node that
	// asks every five seconds finds them all, and room for others is left.
	outputBurstBytes     = 384 << 10
	outputBytesPerSecond = 20 << 10
	// creditMinBytes must have come together before output is logged again: a log of scraps is of no use.
	creditMinBytes = 32 << 10
)

// Book is the log. Its zero value is empty and ready; a nil one takes nothing.
type Book struct {
	mu      sync.Mutex
	entries []entry
	bytes   int
	// last is the id given last.
	last int64
	// lost entries were pushed out before anybody took them, and skipped bytes of output never became any.
	lost    int64
	skipped int64
	// credit is how many bytes entries of output may still take, as of creditAt; overdrawn: not before creditMinBytes again.
	credit    float64
	creditAt  time.Time
	overdrawn bool
	// grown is closed when there is something new to take; nil: nobody waits for that.
	grown chan struct{}
}

// entry is a JSON array: id, level, logger, message, fields.
type entry struct {
	id   int64
	json []byte
}

// Add writes one entry. Its id is its time in microseconds since 1970, made unique: ids only grow, also across a return to an
// older state of the machine.
func (b *Book) Add(level Level, logger, message string, fields Fields) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(level, logger, message, fields)
}

// addOutput writes an entry that is a part of a program's output, unless there is too much of it.
func (b *Book) addOutput(logger, message string, fields Fields) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.creditAt.IsZero() {
		b.credit = outputBurstBytes
	}
	b.credit = min(outputBurstBytes, b.credit+now.Sub(b.creditAt).Seconds()*outputBytesPerSecond)
	b.creditAt = now
	if b.credit <= 0 || b.overdrawn && b.credit < creditMinBytes {
		b.overdrawn = true
		return false
	}
	b.overdrawn = false
	b.credit -= float64(b.addLocked(Info, logger, message, fields))
	return true
}

// skip counts output that did not become an entry.
func (b *Book) skip(bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.skipped += int64(bytes)
	b.growLocked()
}

// Clear forgets everything: a copy of a sandbox does not go on with the original's log.
func (b *Book) Clear() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries, b.bytes, b.lost, b.skipped = nil, 0, 0, 0
}

// Take returns the oldest entries with ids above after, up to maxBytes of JSON but at least one, and tells whether there are
// more. Entries up to after are forgotten: whoever says that id has them. Losses become an entry.
func (b *Book) Take(after int64, maxBytes int) (entries []json.RawMessage, more bool) {
	entries = []json.RawMessage{}
	if b == nil {
		return entries, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.entries) > 0 && b.entries[0].id <= after {
		b.dropFirstLocked()
	}
	b.tellLossesLocked()
	size := 0
	for _, e := range b.entries {
		size += len(e.json) + 1
		if len(entries) > 0 && size > maxBytes {
			return entries, true
		}
		entries = append(entries, e.json)
	}
	return entries, false
}

// AwaitNewer returns when there is something to take after this id, or when ctx is done. Waiting costs nothing.
func (b *Book) AwaitNewer(ctx context.Context, after int64) {
	if b == nil {
		<-ctx.Done()
		return
	}
	for {
		grown := b.grownAfter(after)
		if grown == nil {
			return
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return
		}
	}
}

// grownAfter is nil when there is something to take after this id.
func (b *Book) grownAfter(after int64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost > 0 || b.skipped > 0 || len(b.entries) > 0 && b.entries[len(b.entries)-1].id > after {
		return nil
	}
	if b.grown == nil {
		b.grown = make(chan struct{})
	}
	return b.grown
}

func (b *Book) growLocked() {
	if b.grown != nil {
		close(b.grown)
		b.grown = nil
	}
}

// addLocked returns what the entry takes.
func (b *Book) addLocked(level Level, logger, message string, fields Fields) int {
	b.last = max(b.last+1, time.Now().UnixMicro())
	safe := make(Fields, len(fields))
	for name, value := range fields {
		safe[name] = clean(value)
	}
	text, err := json.Marshal([]any{b.last, level, logger, clean(message), safe})
	if err != nil {
		panic(err)
	}
	b.entries = append(b.entries, entry{b.last, text})
	size := len(text) + entryOverheadBytes
	b.bytes += size
	for b.bytes > bookBytes {
		b.dropFirstLocked()
		b.lost++
	}
	b.growLocked()
	return size
}

func (b *Book) dropFirstLocked() {
	b.bytes -= len(b.entries[0].json) + entryOverheadBytes
	b.entries[0] = entry{}
	b.entries = b.entries[1:]
	if len(b.entries) == 0 {
		// The array behind it goes too.
		b.entries = nil
	}
}

func (b *Book) tellLossesLocked() {
	if b.skipped > 0 {
		b.addLocked(Warn, "envd", fmt.Sprintf("%d bytes of output were not logged: there was too much of it", b.skipped), Fields{"event_type": "log_gap"})
		b.skipped = 0
	}
	if b.lost > 0 {
		b.addLocked(Warn, "envd", fmt.Sprintf("%d log entries were lost: nobody took them in time", b.lost), Fields{"event_type": "log_gap"})
		b.lost = 0
	}
}

// clean makes a text valid and short.
func clean(text string) string {
	if len(text) > messageMaxBytes {
		text = text[:messageMaxBytes]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
