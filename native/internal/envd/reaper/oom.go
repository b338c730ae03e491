package reaper

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	scorePath = "/proc/self/oom_score_adj"
	// ordinaryScore is that of what nobody has protected.
	ordinaryScore = 0
)

// shelter is what protects this process from the kernel's OOM killer and must not protect its children: an oom_score_adj
// that is lower than theirs. A child inherits its parent's, so the parent takes theirs for the moment of the fork: what a
// child starts at once never has another.
type shelter struct {
	// mu is held from before a fork until after its exec: until then the child shares the parent's memory, and the kernel
	// gives both the score that one of them gets.
	mu            sync.Mutex
	file          *os.File
	own, children int
}

// newShelter returns nil for a process that is not better protected than its children are to be.
func newShelter(children int) *shelter {
	file, err := os.OpenFile(scorePath, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	text := make([]byte, 16)
	n, _ := file.ReadAt(text, 0)
	own, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil || own >= children {
		file.Close()
		return nil
	}
	return &shelter{file: file, own: own, children: children}
}

// fork calls start, which forks and executes, outside of the shelter.
func (s *shelter) fork(start func() (int, error)) (int, error) {
	if s == nil {
		return start()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.set(s.children); err != nil {
		return 0, fmt.Errorf("set the child's %s: %w", scorePath, err)
	}
	// It may go back to what it was given, so this does not fail; if it did, the agent would merely be less safe.
	defer func() { _ = s.set(s.own) }()
	return start()
}

func (s *shelter) set(score int) error {
	_, err := unix.Pwrite(int(s.file.Fd()), []byte(strconv.Itoa(score)), 0)
	return err
}
