// keeper is the one long-lived process of a node. Usage: keeper -config FILE.
//
// SIGHUP reads the configuration again; SIGTERM and SIGINT stop the services and end the keeper.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"aenv/native/internal/keeper"
)

func main() {
	configPath := flag.String("config", "", "configuration file (JSON)")
	flag.Parse()
	if *configPath == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: keeper -config FILE")
		os.Exit(2)
	}
	if err := run(*configPath, slog.New(slog.NewJSONHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		os.Exit(1)
	}
}

func run(configPath string, log *slog.Logger) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	// Whoever started the keeper may stop reading its stderr; that must not end it. Caught rather than ignored: what is
	// ignored would be inherited by all it starts.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	config, err := keeper.LoadConfig(configPath)
	if err != nil {
		return err
	}
	k, err := keeper.Start(config, log)
	if err != nil {
		return err
	}
	log.Info("keeper started", "pid", os.Getpid(), "version", config.Version, "socket", config.Socket)
	for sig := range signals {
		if sig != syscall.SIGHUP {
			break
		}
		if err := reload(k, configPath); err != nil {
			log.Error("configuration not (wholly) taken over", "error", err)
		}
	}
	log.Info("keeper stops")
	return k.Close()
}

func reload(k *keeper.Keeper, configPath string) error {
	config, err := keeper.LoadConfig(configPath)
	if err != nil {
		return err
	}
	return k.Reload(config)
}
