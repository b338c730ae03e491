package logbook

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

type read struct {
	ID                     int64
	Level, Logger, Message string
	Fields                 map[string]string
}

// take reads all there is after an id.
func take(t *testing.T, b *Book, after int64) []read {
	t.Helper()
	var all []read
	for {
		raw, more := b.Take(after, 8<<10)
		for _, one := range raw {
			var e read
			if err := json.Unmarshal(one, &[]any{&e.ID, &e.Level, &e.Logger, &e.Message, &e.Fields}); err != nil {
				t.Fatalf("%s: %v", one, err)
			}
			if e.ID <= after {
				t.Fatalf("id %d does not grow after %d", e.ID, after)
			}
			after = e.ID
			all = append(all, e)
		}
		if !more {
			return all
		}
	}
}

func messages(entries []read) string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Message)
	}
	return strings.Join(all, "|")
}

func TestEntriesAreGivenUntilTheyAreTaken(t *testing.T) {
	b := &Book{}
	before := time.Now().UnixMicro()
	b.Add(Info, "a", "one", Fields{"k": "v"})
	b.Add(Warn, "a", "two \xff", nil)
	first := take(t, b, 0)
	if messages(first) != "one|two \uFFFD" || first[0].Fields["k"] != "v" || first[1].Level != "warn" || first[0].ID < before {
		t.Fatalf("%+v", first)
	}
	if again := take(t, b, 0); messages(again) != messages(first) {
		t.Fatalf("an answer that was lost: %+v", again)
	}
	if rest := take(t, b, first[0].ID); messages(rest) != "two \uFFFD" {
		t.Fatalf("%+v", rest)
	}
	b.Add(Info, "a", "three", nil)
	if rest := take(t, b, first[1].ID); messages(rest) != "three" {
		t.Fatalf("%+v", rest)
	}
	b.Clear()
	if rest := take(t, b, 0); rest != nil {
		t.Fatalf("%+v", rest)
	}
	var none *Book
	none.Add(Info, "a", "nowhere", nil)
	none.Clear()
	if rest, more := none.Take(0, 1); len(rest) != 0 || more {
		t.Fatal("a nil book has entries")
	}
}

func TestWhoAwaitsEntriesIsToldOfTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Book{}
		out := b.Lines("process", nil)
		awaits := func(after int64) <-chan struct{} {
			told := make(chan struct{})
			go func() {
				defer close(told)
				b.AwaitNewer(t.Context(), after)
			}()
			return told
		}
		b.Add(Info, "a", "one", nil)
		one := take(t, b, 0)[0].ID
		<-awaits(0)
		for _, write := range []func(){
			func() { b.Add(Info, "a", "two", nil) },
			func() { out.Write([]byte("three\n")) },
			func() { b.skip(1) },
		} {
			first, second := awaits(b.last), awaits(b.last)
			synctest.Wait()
			select {
			case <-first:
				t.Fatal("told of nothing")
			case <-second:
				t.Fatal("told of nothing")
			default:
			}
			write()
			<-first
			<-second
			take(t, b, one)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b.AwaitNewer(ctx, b.last)
		(*Book)(nil).AwaitNewer(ctx, 0)
	})
}

func TestTheOldestGoFirstAndAreCounted(t *testing.T) {
	b := &Book{}
	for range 300 {
		b.Add(Info, "a", strings.Repeat("x", messageMaxBytes+1), nil)
	}
	b.Add(Info, "a", "newest", nil)
	if b.bytes > bookBytes {
		t.Fatalf("%d bytes", b.bytes)
	}
	got := take(t, b, 0)
	kept := len(got) - 2
	if kept < 100 || kept > 128 || got[kept].Message != "newest" || len(got[0].Message) != messageMaxBytes {
		t.Fatalf("kept %d", kept)
	}
	told := got[kept+1]
	if told.Level != "warn" || told.Fields["event_type"] != "log_gap" || !strings.Contains(told.Message, "log entries were lost") {
		t.Fatalf("%+v", told)
	}
}

func TestLinesOfOutput(t *testing.T) {
	b := &Book{}
	out := b.Lines("process", Fields{"pid": "7"})
	for _, part := range []string{"he", "llo\r\n\nwor", "ld\n", "no end"} {
		out.Write([]byte(part))
	}
	if got := take(t, b, 0); messages(got) != "hello||world" || got[0].Fields["pid"] != "7" {
		t.Fatalf("%+v", got)
	}
	out.Flush()
	out.Flush()
	if got := take(t, b, b.last-1); messages(got) != "no end" {
		t.Fatalf("%+v", got)
	}
	b.Clear()
	long := strings.Repeat("é", messageMaxBytes)
	out.Write([]byte("x" + long + "\n"))
	got := take(t, b, 0)
	joined := strings.ReplaceAll(messages(got), "|", "")
	if len(got) != 3 || joined != "x"+long || !utf8.ValidString(got[0].Message) {
		t.Fatalf("%d entries", len(got))
	}
}

// A program that writes without end is cut off early, and the log says so.
func TestOutputWithoutEndIsSkipped(t *testing.T) {
	b := &Book{}
	out := b.Lines("process", nil)
	chunk := []byte(strings.Repeat(strings.Repeat("y", 1023)+"\n", 32))
	start := time.Now()
	for range 1024 {
		out.Write(chunk)
	}
	took := time.Since(start)
	got := take(t, b, 0)
	size := 0
	for _, e := range got {
		size += len(e.Message)
	}
	allowed := outputBurstBytes + int(took.Seconds()*outputBytesPerSecond)
	if size > allowed+2048 || size < outputBurstBytes*3/4 {
		t.Fatalf("%d bytes in %v", size, took)
	}
	if last := got[len(got)-1]; last.Fields["event_type"] != "log_gap" || !strings.Contains(last.Message, "bytes of output were not logged") {
		t.Fatalf("%+v", last)
	}
	b.Clear()
	b.creditAt = b.creditAt.Add(-time.Second)
	out.Write([]byte("too early\n"))
	if got := take(t, b, 0); len(got) != 1 || got[0].Fields["event_type"] != "log_gap" {
		t.Fatalf("%+v", got)
	}
	b.Clear()
	b.creditAt = b.creditAt.Add(-time.Minute)
	out.Write([]byte("after the gap\n"))
	if got := take(t, b, 0); messages(got) != "after the gap" {
		t.Fatalf("%+v", got)
	}
}

// Small lines cost many times their size: what the book may hold counts, not what was written.
func TestManySmallLinesAreKept(t *testing.T) {
	b := &Book{}
	out := b.Lines("process", Fields{"event_type": "stdout", "pid": "1234"})
	for n := range 100_000 {
		out.Write([]byte(strconv.Itoa(n) + "\n"))
	}
	got := take(t, b, 0)
	if len(got) < 2000 || b.bytes > bookBytes || b.lost > 0 {
		t.Fatalf("%d entries, %d bytes, %d lost", len(got), b.bytes, b.lost)
	}
	for n, e := range got[:2000] {
		if e.Message != strconv.Itoa(n) {
			t.Fatalf("line %d is %q", n, e.Message)
		}
	}
}

// What one write costs a program whose output is not logged any more.
func BenchmarkSkippedOutput(bench *testing.B) {
	out := (&Book{}).Lines("process", nil)
	chunk := []byte(strings.Repeat(strings.Repeat("y", 79)+"\n", 400))
	bench.SetBytes(int64(len(chunk)))
	for bench.Loop() {
		out.Write(chunk)
	}
}
