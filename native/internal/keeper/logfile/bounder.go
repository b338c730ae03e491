// Package logfile bounds log files that other processes write. The writers hold the file itself, opened O_APPEND, and
// no pipe: they outlive the keeper without a signal or a lost descriptor, and another keeper bounds their files again.
package logfile

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// DefaultLimitBytes is used where a limit of 0 is asked for.
	DefaultLimitBytes = 1 << 20
	// MaxLimitBytes bounds the memory a cut takes (half of it).
	MaxLimitBytes = 256 << 20

	sweepEvery = 5 * time.Second
)

// Bounder remembers the log files it opened, in memory and in a journal file that the next keeper starts from, cuts
// those that have grown past their limit every five seconds, and forgets those that were deleted.
type Bounder struct {
	mu      sync.Mutex
	limits  map[string]int64
	journal string
	log     *slog.Logger
	stop    chan struct{}
	work    sync.WaitGroup
}

// entry is one line of the journal. A later line for the same path replaces an earlier one.
type entry struct {
	Path       string `json:"path"`
	LimitBytes int64  `json:"limitBytes"`
}

// NewBounder starts from what the journal names, if there is one.
func NewBounder(journal string, log *slog.Logger) (*Bounder, error) {
	b := &Bounder{limits: map[string]int64{}, journal: journal, log: log, stop: make(chan struct{})}
	if err := b.load(); err != nil {
		return nil, err
	}
	b.work.Add(1)
	go func() {
		defer b.work.Done()
		ticker := time.NewTicker(sweepEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				b.sweep()
			case <-b.stop:
				return
			}
		}
	}()
	return b, nil
}

// Close stops bounding. Files and journal stay.
func (b *Bounder) Close() {
	close(b.stop)
	b.work.Wait()
}

// Open opens a log file for appending, making it when needed, and bounds it from now on. The caller hands the file to
// the process that writes it and closes it. limitBytes 0 means DefaultLimitBytes.
func (b *Bounder) Open(path string, limitBytes int64) (*os.File, error) {
	if limitBytes == 0 {
		limitBytes = DefaultLimitBytes
	}
	if !filepath.IsAbs(path) || limitBytes < 0 || limitBytes > MaxLimitBytes {
		return nil, fmt.Errorf("log file %q with a limit of %d bytes: want an absolute path and at most %d bytes",
			path, limitBytes, MaxLimitBytes)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open log file: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limits[path] != limitBytes {
		if err := b.append(entry{path, limitBytes}); err != nil {
			file.Close()
			return nil, err
		}
		b.limits[path] = limitBytes
	}
	return file, nil
}

func (b *Bounder) sweep() {
	b.mu.Lock()
	defer b.mu.Unlock()
	forgot := false
	for path, limit := range b.limits {
		err := cut(path, limit)
		if errors.Is(err, fs.ErrNotExist) {
			delete(b.limits, path)
			forgot = true
		} else if err != nil {
			b.log.Error("cannot bound a log file", "path", path, "error", err)
		}
	}
	if forgot {
		if err := b.rewrite(); err != nil {
			b.log.Error("cannot rewrite the list of log files", "path", b.journal, "error", err)
		}
	}
}

func (b *Bounder) append(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(b.journal, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("note a log file: %w", err)
	}
	defer file.Close()
	if _, err := file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("note a log file in %s: %w", b.journal, err)
	}
	return nil
}

// rewrite replaces the journal by what is still bounded. Preconditions: mu is held.
func (b *Bounder) rewrite() error {
	temp := b.journal + ".tmp"
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	encoder := json.NewEncoder(file)
	for path, limit := range b.limits {
		if err := encoder.Encode(entry{path, limit}); err != nil {
			return err
		}
	}
	return os.Rename(temp, b.journal)
}

func (b *Bounder) load() error {
	file, err := os.Open(b.journal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the list of log files: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e entry
		// A line torn by a crash names no file; the others still count.
		if json.Unmarshal(lines.Bytes(), &e) == nil && filepath.IsAbs(e.Path) && e.LimitBytes > 0 && e.LimitBytes <= MaxLimitBytes {
			b.limits[e.Path] = e.LimitBytes
		}
	}
	return lines.Err()
}
