// Package keeper assembles the one long-lived process of a node: it runs commands for others, reaps orphans, tells of
// exits, and keeps the node's services running. It decides nothing.
//
// Its own death costs exit codes and nothing else. No long-lived process holds a pipe of the keeper (logs are files the
// writers append to themselves), none is told to die with it, and the next keeper finds the services again.
package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"aenv/native/internal/keeper/command"
	"aenv/native/internal/keeper/logfile"
	"aenv/native/internal/keeper/proc"
	"aenv/native/internal/keeper/service"

	"golang.org/x/sys/unix"
)

// shutdownGrace is how long commands still running get to end when the keeper is stopped; after that they run on and
// their callers see the connection end.
const shutdownGrace = 2 * time.Second

// ownLogLimitBytes bounds the log of the keeper itself.
const ownLogLimitBytes = 1 << 20

// Keeper is a running keeper.
type Keeper struct {
	config   Config
	log      *slog.Logger
	epoch    string
	lockFile *os.File
	table    *proc.Table
	logs     *logfile.Bounder
	commands *command.Runner
	services *service.Group
	server   *http.Server
	// endStreams ends the Exits streams.
	endStreams context.CancelFunc
	served     chan error
}

// Start takes the lock, listens, and starts or takes up the services. Preconditions: there is no other Keeper in this
// process and nothing else in it waits for children.
func Start(config Config, log *slog.Logger) (*Keeper, error) {
	lockFile, err := lock(config.LockFile, config.pidFile())
	if err != nil {
		return nil, err
	}
	k := &Keeper{config: config, log: log, epoch: rand.Text(), lockFile: lockFile, served: make(chan error, 1)}
	if err := k.open(); err != nil {
		k.release()
		return nil, err
	}
	if err := k.services.Apply(config.Services); err != nil {
		// Those are tried again; the others and the API are worth having meanwhile.
		log.Error("some services could not be started", "error", err)
	}
	return k, nil
}

func (k *Keeper) open() (err error) {
	if err := service.WriteFile(k.config.pidFile(), []byte(strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return fmt.Errorf("write the pid file: %w", err)
	}
	if k.table, err = proc.NewTable(); err != nil {
		return err
	}
	if k.logs, err = logfile.NewBounder(k.config.logsFile(), k.log); err != nil {
		return err
	}
	if k.config.LogFile != "" {
		own, err := k.logs.Open(k.config.LogFile, ownLogLimitBytes)
		if err != nil {
			return err
		}
		own.Close()
	}
	if k.commands, err = command.NewRunner(k.table, k.logs); err != nil {
		return err
	}
	if k.services, err = service.NewGroup(k.table, k.logs, k.config.servicesFile(), k.log); err != nil {
		return err
	}
	return k.serve()
}

func (k *Keeper) serve() error {
	// We hold the lock: a socket that is there was left by a keeper that is gone.
	if err := os.Remove(k.config.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	mask := unix.Umask(0o177)
	listener, err := net.Listen("unix", k.config.Socket)
	unix.Umask(mask)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	streams, endStreams := context.WithCancel(context.Background())
	k.endStreams = endStreams
	k.server = &http.Server{
		Handler:           newHandler(k, streams),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() { k.served <- k.server.Serve(listener) }()
	return nil
}

// Reload makes the services those of another configuration. Socket, folders and lock stay as they are.
func (k *Keeper) Reload(config Config) error {
	return k.services.Apply(config.Services)
}

// Close stops the services in reverse order, lets running commands end for a moment, and removes what names this
// keeper. Processes that commands left running are not touched.
func (k *Keeper) Close() error {
	k.services.StopAll()
	k.endStreams()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	err := k.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = k.server.Close()
	}
	<-k.served
	k.release()
	return err
}

// release gives back what open and Start took; also half of it.
func (k *Keeper) release() {
	if k.logs != nil {
		k.logs.Close()
	}
	if k.table != nil {
		k.table.Close()
	}
	for _, path := range []string{k.config.Socket, k.config.pidFile()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			k.log.Error("cannot remove a file", "path", path, "error", err)
		}
	}
	k.lockFile.Close()
}
