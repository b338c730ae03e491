package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"aenv/native/internal/edge"
	"aenv/native/internal/edge/certs"
)

// tryEvery is how soon HTTPS is served once what was in its way is gone.
const tryEvery = 2 * time.Second

// secured is a port that speaks TLS.
type secured struct {
	net.Listener
	config *tls.Config
}

// openTLS is nil where no TLS is spoken: nobody wants it, or it cannot be had now and nobody has asked for it.
func openTLS(ctx context.Context, o options, log *slog.Logger) (*secured, error) {
	if o.tlsListen == "" {
		return nil, nil
	}
	port, err := tryTLS(ctx, o, log)
	if err != nil && o.tlsOptional {
		log.Error("HTTPS is not served until this is mended; HTTP is", "address", o.tlsListen, "error", err.Error())
		return nil, nil
	}
	return port, err
}

// laterTLS tries until the port can be opened; nil when ctx has ended before.
func laterTLS(ctx context.Context, o options, log *slog.Logger) *secured {
	ticker := time.NewTicker(tryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if port, err := tryTLS(ctx, o, log); err == nil {
			log.Info("HTTPS is served now", "tls", port.Addr().String())
			return port
		}
	}
}

func tryTLS(ctx context.Context, o options, log *slog.Logger) (*secured, error) {
	listener, err := edge.Listen(ctx, o.tlsListen)
	if err != nil {
		return nil, err
	}
	keeper, err := certificates(ctx, o, log)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &secured{listener, keeper.Config()}, nil
}

func certificates(ctx context.Context, o options, log *slog.Logger) (*certs.Keeper, error) {
	if o.certPath != "" {
		return certs.Files(ctx, o.certPath, o.keyPath, log)
	}
	return certs.Local(ctx, filepath.Join(o.data, "tls"), strings.ToLower(o.domain), log)
}
