// Package keeperwatch starts the keeper again when it has died. The keeper starts everybody else, so somebody else has to start
// the keeper: the edge and aenvd both look after it (its lock lets only one live).
package keeperwatch

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const checkEvery = 500 * time.Millisecond

// Watch says where the keeper of a server is.
type Watch struct {
	// Program is the keeper's, ConfigFile its configuration; without that there is no keeper to look after.
	Program, ConfigFile string
	// PidFile is removed by a keeper that was told to stop, which is left alone.
	PidFile string
	LogFile string
	Log     *slog.Logger
}

// Run looks until ctx ends.
func (w Watch) Run(ctx context.Context) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	wasGone := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		isGone := exists(w.ConfigFile) && w.hasDied()
		// Twice in a row: whoever replaces a keeper leaves a gap.
		if isGone && wasGone {
			w.Log.Error("the keeper has died; it is started again", "pid", os.Getpid())
			if err := w.start(); err != nil {
				w.Log.Error("the keeper cannot be started", "error", err.Error())
			}
		}
		wasGone = isGone && !wasGone
	}
}

// hasDied: a pid file is there and names no keeper that lives.
func (w Watch) hasDied() bool {
	pid, err := os.ReadFile(w.PidFile)
	if err != nil {
		return false
	}
	name, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "comm"))
	return err != nil || strings.TrimSpace(string(name)) != "keeper"
}

// start makes it nobody's child but init's or the nearest subreaper's: a group and a session of its own.
func (w Watch) start() error {
	log, err := os.OpenFile(w.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(w.Program, "-config", w.ConfigFile)
	command.Dir = "/"
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return err
	}
	// Whoever ends first, nobody is left as a zombie.
	go func() { _ = command.Wait() }()
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
