// Command blobd brings images to a node, keeps them as flat EROFS files and shows them as mounted directories. It may be
// killed at any time: mounts and leases outlive it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"aenv/native/internal/blobd/fault"
	"aenv/native/internal/blobd/images"
	"aenv/native/internal/blobd/service"
	"aenv/native/internal/keeperwatch"
)

const (
	headerTimeout = 10 * time.Second
	stopTimeout   = 5 * time.Second
	lockTimeout   = 10 * time.Second
	lockPoll      = 50 * time.Millisecond
)

func main() {
	data := flag.String("data", "", "folder of blobd's own files, for example /var/lib/aenv/blobs")
	keeperOf := flag.String("keeper-of", "", "data folder of a server whose keeper is started again when it has died; nobody's when it is empty")
	socket := flag.String("socket", "", "unix socket to listen on, for example /var/lib/aenv/run/blobd.sock")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if *data == "" || *socket == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: blobd -data FOLDER -socket PATH [-keeper-of FOLDER]")
		os.Exit(2)
	}
	if err := run(*data, *socket, *keeperOf, log); err != nil {
		log.Error("blobd cannot go on", "error", err.Error())
		os.Exit(1)
	}
}

func run(data, socket, keeperOf string, log *slog.Logger) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	store, err := openStore(ctx, data, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	blobd := service.New(store, log)
	defer blobd.Close()
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: blobd.Handler(), Protocols: &protocols, ReadHeaderTimeout: headerTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if keeperOf != "" {
		var watching sync.WaitGroup
		watching.Go(func() { keeperwatch.Of(keeperOf, log).Run(ctx) })
		// It ends with ctx.
		defer watching.Wait()
		defer stop()
	}
	log.Info("blobd is ready", "socket", socket, "data", data, "images", len(store.List()), "leases", len(store.Leases()))

	select {
	case err = <-served:
		return err
	case <-ctx.Done():
	}
	log.Info("blobd stops")
	// Pulls end first, so that their callers hear why before the connections close.
	deadline, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	blobd.Close()
	if err := server.Shutdown(deadline); err != nil && !errors.Is(err, net.ErrClosed) {
		return errors.Join(err, server.Close())
	}
	return nil
}

// openStore waits a little for the folder: a killed blobd keeps its lock until the kernel has cleaned up after it.
func openStore(ctx context.Context, data string, log *slog.Logger) (*images.Store, error) {
	deadline := time.Now().Add(lockTimeout)
	for {
		store, err := images.Open(data, log)
		if fault.KindOf(err) != fault.Unavailable || time.Now().After(deadline) {
			return store, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(lockPoll):
		}
	}
}

// listen makes the socket with mode 0600 from its first moment. The store's lock says that no other blobd uses it.
func listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	before := syscall.Umask(0o177)
	defer syscall.Umask(before)
	return net.Listen("unix", socket)
}
