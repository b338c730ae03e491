// Command edge is the public port of a server: it passes traffic on to sandboxes and to aenvd. What it decides by comes from
// aenvd over a socket; it goes on without it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"aenv/native/internal/edge"
	"aenv/native/internal/keeperwatch"
)

type options struct {
	listen, tlsListen, data, domain string
	certPath, keyPath               string
	tlsOptional                     bool
	connections                     int
}

func main() {
	var o options
	flag.StringVar(&o.listen, "listen", "", "address and port for HTTP, for example 127.0.0.1:8000")
	flag.StringVar(&o.tlsListen, "tls-listen", "", "address and port for HTTPS; none when it is empty")
	flag.BoolVar(&o.tlsOptional, "tls-optional", false, "nobody has asked for HTTPS: without it HTTP is served all the same")
	flag.StringVar(&o.data, "data", "", "data folder of the server, for example /var/lib/aenv")
	flag.StringVar(&o.domain, "domain", "", "sandboxes are PORT-ID.DOMAIN")
	flag.StringVar(&o.certPath, "tls-cert", "", "certificates of your own, PEM; without them a local authority in the data folder makes one")
	flag.StringVar(&o.keyPath, "tls-key", "", "the certificate's key, PEM")
	flag.IntVar(&o.connections, "max-connections", 0, "clients at once; by default what the limit of open files allows")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if o.listen == "" || o.data == "" || flag.NArg() > 0 || (o.certPath == "") != (o.keyPath == "") ||
		(o.tlsListen != "" && o.certPath == "" && o.domain == "") {
		fmt.Fprintln(os.Stderr, "usage: edge -listen ADDRESS:PORT -data FOLDER [-tls-listen ADDRESS:PORT] [-tls-optional] [-domain NAME] [-tls-cert FILE -tls-key FILE]")
		os.Exit(2)
	}
	boundMemory()
	boundProcessors()
	if err := run(o, log); err != nil {
		log.Error("the edge cannot go on", "error", err.Error())
		os.Exit(1)
	}
}

func run(o options, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	forwarder, err := forwarderName()
	if err != nil {
		return err
	}
	if o.connections == 0 {
		o.connections = edge.ConnectionLimit()
	}
	settings := edge.Options{
		APISocket:    filepath.Join(o.data, "run", "aenvd.sock"),
		RoutesSocket: filepath.Join(o.data, "run", "routes.sock"),
		Forwarder:    forwarder,
		// Names are compared in lower case.
		Domain:         strings.ToLower(o.domain),
		MaxConnections: o.connections,
		Log:            log,
	}
	plain, err := edge.Listen(ctx, o.listen)
	if err != nil {
		return err
	}
	port, err := openTLS(ctx, o, log)
	if err != nil {
		return errors.Join(err, plain.Close())
	}
	return serve(ctx, o, settings, plain, port)
}

// serve returns when ctx has ended, or a port fails.
func serve(ctx context.Context, o options, settings edge.Options, plain net.Listener, port *secured) (err error) {
	server := edge.New(settings)
	failed := make(chan error, 2)
	background, stopBackground := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() { failed <- server.Serve(plain) })
	said := []any{"address", plain.Addr().String(), "pid", os.Getpid()}
	if port != nil {
		said = append(said, "tls", port.Addr().String())
	}
	if o.tlsListen != "" {
		serving.Go(func() {
			if port == nil {
				port = laterTLS(background, o, settings.Log)
			}
			if port != nil {
				failed <- server.ServeTLS(port, port.config)
			}
		})
	}
	settings.Log.Info("edge listens", said...)
	serving.Go(func() { keeperwatch.Of(o.data, settings.Log).Run(background) })
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stopBackground()
	server.Close()
	serving.Wait()
	return err
}

// forwarderName names this process for as long as it lives, as src/proxy/wire.ts says: PID:START, in ticks since the host's.
func forwarderName() (string, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return "", err
	}
	// The name in parentheses may hold anything; the start is the 20th field behind it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/self/stat has %d fields behind the name", len(fields))
	}
	return fmt.Sprintf("%d:%s", os.Getpid(), fields[19]), nil
}
