package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// shelteredScore is the oom_score_adj of the keeper and its services: when the host runs out of memory, nearly everything
// else goes first. Not -1000: a service that leaks must stay something the kernel can end.
const shelteredScore = -900

// scores are the two values of oom_score_adj there are. A child inherits that of its parent, so the keeper takes the
// commands' own for the moment of their fork: what a command starts at once never has another.
type scores struct {
	file                *os.File // the keeper's own
	sheltered, commands int
}

// openScores lowers the keeper's own score as far as it may: not at all without CAP_SYS_RESOURCE.
func openScores() (*scores, error) {
	const path = "/proc/self/oom_score_adj"
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	text := make([]byte, 16)
	n, err := file.ReadAt(text, 0)
	if n == 0 {
		file.Close()
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	given, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s := &scores{file: file, sheltered: given, commands: max(given, 0)}
	if given > shelteredScore && s.set(shelteredScore) == nil {
		s.sheltered = shelteredScore
	}
	return s, nil
}

// forCommands gives the keeper the score of commands until the returned function is called.
func (s *scores) forCommands() (back func(), err error) {
	if s.commands == s.sheltered {
		return func() {}, nil
	}
	if err := s.set(s.commands); err != nil {
		return nil, fmt.Errorf("set the oom_score_adj of a command: %w", err)
	}
	// It may go back to what it was given, so this does not fail; if it did, the keeper would merely be less safe.
	return func() { _ = s.set(s.sheltered) }, nil
}

func (s *scores) set(score int) error {
	_, err := unix.Pwrite(int(s.file.Fd()), []byte(strconv.Itoa(score)), 0)
	return err
}

func (s *scores) close() { s.file.Close() }
