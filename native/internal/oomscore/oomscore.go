// Package oomscore keeps what protects a process from the kernel's OOM killer, its oom_score_adj, from its children. A child
// inherits its parent's score, so the parent takes theirs for the moment of the fork: what a child starts at once never has
// another.
package oomscore

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Path is this process's own score.
const Path = "/proc/self/oom_score_adj"

// Score is this process's. Its methods are not for several goroutines at once: from before a fork until after the exec the child
// shares its parent's memory, and the kernel gives both the score that one of them gets.
type Score struct {
	// Own is this process's score, Children what its children get.
	Own, Children int
	file          *os.File
}

// Open reads this process's score. Children get the same until somebody says otherwise.
func Open() (*Score, error) {
	file, err := os.OpenFile(Path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	text := make([]byte, 16)
	n, err := file.ReadAt(text, 0)
	if n == 0 {
		file.Close()
		return nil, fmt.Errorf("read %s: %w", Path, err)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", Path, err)
	}
	return &Score{Own: own, Children: own, file: file}, nil
}

// Lower makes this process safer, which needs CAP_SYS_RESOURCE. Without it nothing changes.
func (s *Score) Lower(score int) {
	if score < s.Own && s.set(score) == nil {
		s.Own = score
	}
}

// ForChildren gives this process its children's score until the returned function is called.
func (s *Score) ForChildren() (back func(), err error) {
	if s.Children == s.Own {
		return func() {}, nil
	}
	if err := s.set(s.Children); err != nil {
		return nil, fmt.Errorf("set a child's %s: %w", Path, err)
	}
	// It may go back to what it was given, so this does not fail; if it did, this process would merely be less safe.
	return func() { _ = s.set(s.Own) }, nil
}

// Close is for when there will be no more children.
func (s *Score) Close() { s.file.Close() }

func (s *Score) set(score int) error {
	_, err := unix.Pwrite(int(s.file.Fd()), []byte(strconv.Itoa(score)), 0)
	return err
}
