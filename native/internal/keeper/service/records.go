package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// record is what the next keeper needs to find a service again: a pid alone may have been given to another process.
type record struct {
	Pid             int    `json:"pid"`
	StartTicks      uint64 `json:"startTicks"`
	StartedAtUnixMs int64  `json:"startedAtUnixMs"`
	PidFile         string `json:"pidFile"`
	// Digest of the definition the process was started from.
	Digest string `json:"digest"`
}

// records is the file that holds them, by service name.
type records struct {
	mu   sync.Mutex
	path string
	all  map[string]record
}

// loadRecords starts from nothing when the file is missing or damaged: pid files still tell.
func loadRecords(path string) (*records, error) {
	r := &records{path: path, all: map[string]record{}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the records of running services: %w", err)
	}
	if json.Unmarshal(raw, &r.all) != nil || r.all == nil {
		r.all = map[string]record{}
	}
	return r, nil
}

func (r *records) get(name string) (record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, has := r.all[name]
	return rec, has
}

func (r *records) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make([]string, 0, len(r.all))
	for name := range r.all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (r *records) set(name string, rec record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[name] = rec
	return r.save()
}

func (r *records) remove(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.all[name]; !has {
		return nil
	}
	delete(r.all, name)
	return r.save()
}

func (r *records) save() error {
	if len(r.all) == 0 {
		if err := os.Remove(r.path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	raw, err := json.Marshal(r.all)
	if err != nil {
		return err
	}
	return WriteFile(r.path, raw)
}

// WriteFile writes a small file so that it is there whole or not at all.
func WriteFile(path string, data []byte) error {
	temp := path + ".tmp"
	err := os.WriteFile(temp, data, 0o644)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp) // what a full disk has taken of it
	}
	return err
}

// pidFromFile returns the pid a pid file names when that process runs the command, or at least the same program with
// the same first argument; 0 otherwise.
func pidFromFile(path string, argv []string) int {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 1 {
		return 0
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return 0
	}
	running := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	told := min(2, len(argv))
	if len(running) < told || !slices.Equal(running[:told], argv[:told]) {
		return 0
	}
	return pid
}
