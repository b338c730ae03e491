package logbook

import (
	"bytes"
	"sync"
	"unicode/utf8"
)

// Lines turns a stream of output into entries, one for each line; very long ones become several.
type Lines struct {
	book   *Book
	logger string
	fields Fields

	mu sync.Mutex
	// rest is the beginning of a line.
	rest []byte
}

// Lines returns a writer of entries with these fields.
func (b *Book) Lines(logger string, fields Fields) *Lines {
	return &Lines{book: b, logger: logger, fields: fields}
}

// Write logs as much of p as the book takes. It does not keep p, never blocks, and never fails.
func (l *Lines) Write(p []byte) {
	if l.book == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(p) > 0 {
		pending := len(l.rest)
		part, rest, ends := bytes.Cut(p, []byte{'\n'})
		if !l.keep(part) || ends && !l.flush() {
			l.book.skip(pending + len(p))
			l.rest = nil
			return
		}
		p = rest
	}
}

// Flush logs a line that has no end yet.
func (l *Lines) Flush() {
	if l.book == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if pending := len(l.rest); pending > 0 && !l.flush() {
		l.book.skip(pending)
	}
}

// keep adds to the line, and logs the beginning of one that is too long.
func (l *Lines) keep(part []byte) bool {
	l.rest = append(l.rest, part...)
	for len(l.rest) > messageMaxBytes {
		end := messageMaxBytes
		// No character is cut in two.
		for end > messageMaxBytes-utf8.UTFMax && !utf8.RuneStart(l.rest[end]) {
			end--
		}
		if !l.add(l.rest[:end]) {
			return false
		}
		l.rest = append(l.rest[:0], l.rest[end:]...)
	}
	return true
}

func (l *Lines) flush() bool {
	line := bytes.TrimSuffix(l.rest, []byte{'\r'})
	l.rest = nil
	return l.add(line)
}

func (l *Lines) add(text []byte) bool {
	return l.book.addOutput(l.logger, string(text), l.fields)
}
