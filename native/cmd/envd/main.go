// Command envd is the agent inside every sandbox: it runs processes for clients and gives them the files. It is pid 1 there,
// unless the image brings an init of its own.
//
// It is one static program that needs nothing of the image it runs in.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"aenv/native/internal/envd/disk"
	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/guest"
	"aenv/native/internal/envd/httpapi"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/logbook"
	"aenv/native/internal/envd/pieces"
	"aenv/native/internal/envd/process"
	"aenv/native/internal/envd/reaper"
	"aenv/native/internal/envd/runclock"
	"aenv/native/internal/envd/users"
)

// version is what the agent reports; clients choose features by it.
const version = "0.6.13"

const (
	// gcPercent trades a little time for a small resident size: every sandbox pays for it.
	gcPercent = 50
	// idleTimeout is longer than any proxy in front keeps a connection, so that the proxy is the one to close.
	idleTimeout       = 640 * time.Second
	headerTimeout     = 30 * time.Second
	headerMaxBytes    = 1 << 20
	concurrentStreams = 1000
)

func main() {
	listen := flag.String("listen", ":49983", "address to serve on")
	beside := flag.Bool("machine", false, "care for the machine as pid 1 does, beside an init that does not know of it")
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.Parse()
	if *showVersion {
		fmt.Println(version)
		return
	}
	if err := run(*listen, os.Getpid() == 1 || *beside); err != nil {
		log.Fatalf("envd: %v", err)
	}
}

// run serves. With ownsMachine it also cares for the machine that it runs in: names, clock, home.
func run(address string, ownsMachine bool) error {
	debug.SetGCPercent(gcPercent)
	// The mask of whoever started the agent must not decide the modes of files in the sandbox.
	syscall.Umask(0o022)
	var machine *guest.Guest
	// Before anything is started that could inherit it.
	machineDisk := disk.FromEnvironment()
	if ownsMachine {
		keepRunning()
		machine = &guest.Guest{}
		machine.Boot()
	} else {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	listener, err := listenAt(address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	log.Printf("envd %s: serving on %s", version, listener.Addr())
	err = newServer(machine, machineDisk).Serve(pieces.Listener{Listener: listener})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// listenAt: clients that are gone without a word are looked for later than one may be idle, because a probe costs the runtime of a
// sandbox that stands still two milliseconds.
func listenAt(address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: idleTimeout, Interval: 75 * time.Second, Count: 9}}
	return config.Listen(context.Background(), "tcp", address)
}

// keepRunning makes the agent survive the signals that would end it: a log pipe that the host has closed, or a program
// in the sandbox that signals everyone. They are caught and dropped rather than ignored, because children would inherit
// an ignored signal.
func keepRunning() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2)
}

func newServer(machine *guest.Guest, machineDisk *disk.Disk) *http.Server {
	who := identity.NewStore(users.Kept(""))
	clock := &runclock.Clock{}
	book := &logbook.Book{}
	api := &httpapi.Server{
		Identity:   who,
		Process:    process.NewService(who, reaper.New(), clock),
		Filesystem: filesystem.NewService(who, clock),
		Guest:      machine,
		Disk:       machineDisk,
		Log:        book,
	}
	api.Process.Log = book
	if machine != nil {
		api.OnRestore = process.OnRestore
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           api.Handler(),
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: concurrentStreams},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerMaxBytes,
	}
}
