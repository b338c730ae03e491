// Package edge is the public port of a server. Traffic for sandboxes goes straight to their slots, everything else to aenvd over
// its unix socket, so a killed or upgraded aenvd cuts no connection into a sandbox.
package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"aenv/native/internal/edge/routes"
	"aenv/native/internal/edge/upstream"
)

const (
	// idleTime: a client's connection that carries nothing ends after this; those into sandboxes end a little earlier.
	idleTime = 620 * time.Second
	// headTime is for one head to come whole, and for a handshake.
	headTime     = 60 * time.Second
	maxHeadBytes = 64 << 10
	// silentTime, after which a client by HTTP/2 is asked whether it is there, is above the 300 s for which E2B's Python SDK
	// keeps a connection that it does not read meanwhile. pingTime is for its answer.
	silentTime = idleTime
	pingTime   = time.Minute
	// stuckTime: a client by HTTP/2 that takes not one byte of those that are waiting for it.
	stuckTime = 5 * time.Minute
	// HTTP/2: E2B's SDKs put up to a hundred and more requests on one connection. Heads of all of them are held at once.
	maxStreams = 300
	// What a client may send of a body before its service takes it is held here. A few such bodies leave the others room.
	streamWindow     = 512 << 10
	connectionWindow = 2 << 20
)

// Options of an edge.
type Options struct {
	// APISocket is aenvd's API, RoutesSocket its route feed.
	APISocket, RoutesSocket string
	// Forwarder names this process to aenvd.
	Forwarder string
	// Domain below which sandboxes are PORT-ID.DOMAIN, without a port; may be empty.
	Domain string
	// MaxConnections of clients at once, and as many again into sandboxes and to aenvd.
	MaxConnections int
	Log            *slog.Logger
}

// Edge serves on listeners of its caller.
type Edge struct {
	options Options
	table   *routes.Table[*upstream.Pool]
	api     *upstream.Pool
	server  *http.Server
	limit   *limit
}

// New makes an edge that follows aenvd from now on.
func New(options Options) *Edge {
	upstreams := upstream.NewLimit(options.MaxConnections)
	e := &Edge{options: options, api: upstreams.ToSocket(options.APISocket), limit: newLimit(options.MaxConnections, options.Log)}
	e.table = routes.Follow(routes.Options[*upstream.Pool]{
		Socket: options.RoutesSocket, Forwarder: options.Forwarder,
		NewWay: func(route routes.Route) *upstream.Pool {
			return upstreams.ToSandbox(route.Address, func(ctx context.Context) error { return e.table.Rouse(ctx, route.SandboxID) })
		},
	})
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	e.server = &http.Server{
		Handler:   http.HandlerFunc(e.serve),
		Protocols: &protocols,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerStream: streamWindow,
			MaxReceiveBufferPerConnection: connectionWindow,
			SendPingTimeout:               silentTime, PingTimeout: pingTime, WriteByteTimeout: stuckTime},
		// Bodies and answers take as long as they take; only clients that are gone are told apart.
		ReadHeaderTimeout: headTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeadBytes,
		DisableGeneralOptionsHandler: true,
		ConnContext:                  withConnection,
		// What clients do wrong is theirs, and they could fill the log with it.
		ErrorLog: slog.NewLogLogger(options.Log.Handler(), slog.LevelDebug),
	}
	return e
}

// Serve returns when the edge is closed, or the listener fails.
func (e *Edge) Serve(listener net.Listener) error {
	return unlessClosed(e.server.Serve(e.limit.of(listener)))
}

// ServeTLS is the same with TLS, for which config has the certificates.
func (e *Edge) ServeTLS(listener net.Listener, config *tls.Config) error {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	return unlessClosed(e.server.Serve(tls.NewListener(e.limit.of(listener), config)))
}

func unlessClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close cuts all connections.
func (e *Edge) Close() {
	_ = e.server.Close()
	e.table.Close()
	e.api.Retire()
}

// Listen opens a port as the edge needs it.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: upstream.KeepAlive}
	return config.Listen(ctx, "tcp", address)
}
