package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// lookEvery is how soon a certificate that was replaced is used.
	lookEvery  = 2 * time.Second
	renewEvery = time.Hour
)

// Keeper has the certificate that holds now. A change cuts no connection: those under way go on with the one they began with.
type Keeper struct {
	current atomic.Pointer[tls.Certificate]
	log     *slog.Logger
}

// Config is for servers; it asks the keeper at each handshake.
func (k *Keeper) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.current.Load(), nil },
	}
}

// Local keeps certificates for a domain of an authority whose files lie in dir (authority.pem, and ca.pem for clients; made when
// they are not there). They are renewed until ctx ends.
func Local(ctx context.Context, dir, domain string, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{log: log}
	renew := func() error {
		now := time.Now()
		if current := k.current.Load(); current != nil && current.Leaf.NotAfter.Sub(now) > renewLeft {
			return nil
		}
		signer, err := openAuthority(dir, domain, now)
		if err != nil {
			return err
		}
		leaf, err := signer.leaf(domain, now)
		if err != nil {
			return err
		}
		k.current.Store(leaf)
		log.Info("certificate made", "domain", domain, "until", leaf.Leaf.NotAfter.Format(time.RFC3339))
		return nil
	}
	if err := tidy(dir); err != nil {
		return nil, err
	}
	if err := renew(); err != nil {
		return nil, err
	}
	go k.every(ctx, renewEvery, "the certificate could not be renewed", renew)
	return k, nil
}

// Files keeps the certificate of two PEM files and reads them again, until ctx ends, when either has changed. A new pair that is
// wrong is said in the log, and the old one kept.
func Files(ctx context.Context, certPath, keyPath string, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{log: log}
	var seen string
	reload := func() error {
		now := stateOf(certPath) + stateOf(keyPath)
		if now == seen {
			return nil
		}
		pair, err := tls.LoadX509KeyPair(certPath, keyPath)
		if err != nil {
			return fmt.Errorf("certificate %s with key %s: %w", certPath, keyPath, err)
		}
		seen = now
		k.current.Store(&pair)
		log.Info("certificate read", "path", certPath, "names", pair.Leaf.DNSNames, "until", pair.Leaf.NotAfter.Format(time.RFC3339))
		return nil
	}
	if err := reload(); err != nil {
		return nil, err
	}
	go k.every(ctx, lookEvery, "the new certificate cannot be used; the old one stays", reload)
	return k, nil
}

// stateOf changes with the file, also when it is replaced behind a link.
func stateOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	var file uint64
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		file = stat.Ino
	}
	return fmt.Sprintf("%d %d %d;", file, info.Size(), info.ModTime().UnixNano())
}

// every does work again and again. What keeps it from being done is said once for as long as it stays the same.
func (k *Keeper) every(ctx context.Context, wait time.Duration, complaint string, work func() error) {
	ticker := time.NewTicker(wait)
	defer ticker.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		text := ""
		if err := work(); err != nil {
			text = err.Error()
		}
		if text != "" && text != said {
			k.log.Error(complaint, "error", text)
		}
		said = text
	}
}
