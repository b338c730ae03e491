package keeperwatch

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// noProcess is above every pid that a kernel gives.
const noProcess = "4194305\n"

func TestOnlyAKeeperThatHasDiedIsStarted(t *testing.T) {
	data := t.TempDir()
	started := filepath.Join(data, "started")
	w := Of(data, slog.New(slog.DiscardHandler))
	w.program = filepath.Join(data, "keeper")
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	write(w.program, "#!/bin/sh\necho \"$@\" >> "+started+"\necho said\n")
	write(w.logFile, "")
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		w.Run(t.Context())
	}()
	t.Cleanup(func() { <-watching })

	// Without a configuration there is no keeper; without a pid file it was told to stop.
	write(w.pidFile, noProcess)
	time.Sleep(4 * checkEvery)
	if err := os.Remove(w.pidFile); err != nil {
		t.Fatal(err)
	}
	write(w.configFile, "{}")
	time.Sleep(4 * checkEvery)
	if text, err := os.ReadFile(started); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was started: %q, %v", text, err)
	}

	write(w.pidFile, noProcess)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(started)
		said, _ := os.ReadFile(w.logFile)
		if strings.HasPrefix(string(text), "-config "+w.configFile+"\n") && strings.HasPrefix(string(said), "said\n") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it was not started: %q, %q", text, said)
		}
	}
}
