package reaper

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/spawn"
	"aenv/native/internal/oomscore"
)

// A sandbox out of memory loses what its user started, not the agent; and what the user started is not safe from that
// because the agent is.
func TestChildrenAreNotProtectedAsTheAgentIs(t *testing.T) {
	given := score(t)
	children := New()
	t.Cleanup(children.Close)
	// Anyone may have a higher score and go back, but only a privileged process have a lower one.
	children.shelter = newShelter(given + 50)

	const many = 20
	scores := make(chan string, many)
	for range many {
		go func() { scores <- childScore(t, children) }()
	}
	want := strconv.Itoa(given + 50)
	for range many {
		if got := <-scores; got != want {
			t.Errorf("a child of a child has the score %q, not %s", got, want)
		}
	}
	if own := score(t); own != given {
		t.Errorf("afterwards the agent has the score %d, not %d", own, given)
	}
	if newShelter(given) != nil {
		t.Error("an agent without protection takes it from its children")
	}
}

func score(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(oomscore.Path)
	if err != nil {
		t.Fatal(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return score
}

// childScore is the oom_score_adj of what a child starts.
func childScore(t *testing.T, children *Reaper) string {
	r, w, err := os.Pipe()
	if err != nil {
		t.Error(err)
		return ""
	}
	defer r.Close()
	defer w.Close()
	exited := make(chan unix.WaitStatus, 1)
	attr := &spawn.Attr{Env: os.Environ(), Files: [3]int{0, int(w.Fd()), 2}}
	if _, err := children.Start("/bin/sh", []string{"sh", "-c", "(cat " + oomscore.Path + ")"}, attr, func(status unix.WaitStatus) { exited <- status }); err != nil {
		t.Error(err)
		return ""
	}
	<-exited
	text := make([]byte, 16)
	n, err := r.Read(text)
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(text[:n]))
}
