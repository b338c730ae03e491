// Package keeperwatch starts the keeper again when it has died. The keeper starts everybody else, so somebody else has to start
// the keeper: edge and blobd both look after it (its lock lets only one live), and only when all three die at once is the host's
// own supervisor, or `npm run up`, needed.
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

// Watch knows where the keeper of a server is.
type Watch struct {
	// program is the keeper's, configFile its configuration; without that there is no keeper to look after.
	program, configFile string
	// pidFile is removed by a keeper that was told to stop, which is left alone.
	pidFile string
	logFile string
	log     *slog.Logger
}

// Of looks after the keeper of the server with this data folder, beside whose program ours lies.
func Of(data string, log *slog.Logger) Watch {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	return Watch{
		program:    filepath.Join(filepath.Dir(program), "keeper"),
		configFile: filepath.Join(data, "keeper.json"),
		pidFile:    filepath.Join(data, "run", "keeper.pid"),
		logFile:    filepath.Join(data, "log", "keeper.log"),
		log:        log,
	}
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
		isGone := exists(w.configFile) && w.hasDied()
		// Twice in a row: whoever replaces a keeper leaves a gap.
		if isGone && wasGone {
			w.log.Error("the keeper has died; it is started again", "pid", os.Getpid())
			if err := w.start(); err != nil {
				w.log.Error("the keeper cannot be started", "error", err.Error())
			}
		}
		wasGone = isGone && !wasGone
	}
}

// hasDied: a pid file is there and names no keeper that lives.
func (w Watch) hasDied() bool {
	pid, err := os.ReadFile(w.pidFile)
	if err != nil {
		return false
	}
	name, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "comm"))
	return err != nil || strings.TrimSpace(string(name)) != "keeper"
}

// start makes it nobody's child but init's or the nearest subreaper's: a group and a session of its own.
func (w Watch) start() error {
	output, err := os.OpenFile(w.logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	command := exec.Command(w.program, "-config", w.configFile)
	command.Dir = "/"
	command.Stdout, command.Stderr = output, output
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
