package reaper

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/spawn"
)

// What is left behind by processes that ended comes to the agent, and does not stay as a zombie.
func TestOrphansAreCollected(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	children := New()
	t.Cleanup(children.Close)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	exited := make(chan unix.WaitStatus, 1)
	attr := &spawn.Attr{Env: os.Environ(), Files: [3]int{0, int(w.Fd()), 2}}
	script := "for i in 1 2 3 4 5 6 7 8; do (setsid sh -c 'sleep 0.05' & echo $!); done"
	if _, err := children.Start("/bin/sh", []string{"sh", "-c", script}, attr, func(status unix.WaitStatus) { exited <- status }); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if status := <-exited; status.ExitStatus() != 0 {
		t.Fatalf("%v", status)
	}
	text := make([]byte, 4096)
	n, err := r.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	orphans := strings.Fields(string(text[:n]))
	if len(orphans) == 0 {
		t.Fatal("there are no orphans")
	}
	for _, orphan := range orphans {
		pid, err := strconv.Atoi(orphan)
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); unix.Kill(pid, 0) == nil; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d is still there", pid)
			}
		}
	}
}
