package reaper

import (
	"sync"

	"aenv/native/internal/oomscore"
)

// ordinaryScore is that of what nobody has protected.
const ordinaryScore = 0

// shelter is what protects this process from the kernel's OOM killer and must not protect its children.
type shelter struct {
	// mu is held from before a fork until after its exec.
	mu    sync.Mutex
	score *oomscore.Score
}

// newShelter returns nil for a process that is not better protected than its children are to be.
func newShelter(children int) *shelter {
	score, err := oomscore.Open()
	if err != nil {
		return nil
	}
	if score.Own >= children {
		score.Close()
		return nil
	}
	score.Children = children
	return &shelter{score: score}
}

// fork calls start, which forks and executes, outside of the shelter.
func (s *shelter) fork(start func() (int, error)) (int, error) {
	if s == nil {
		return start()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	back, err := s.score.ForChildren()
	if err != nil {
		return 0, err
	}
	defer back()
	return start()
}
