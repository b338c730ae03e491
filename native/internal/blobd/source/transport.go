package source

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"aenv/native/internal/blobd/fault"
)

const (
	dialTimeout     = 15 * time.Second
	responseTimeout = 60 * time.Second
	// stallTimeout: a blob of which nothing arrives for so long is given up and begun again.
	stallTimeout   = 60 * time.Second
	layerAttempts  = 4
	maxRetryAfter  = 30 * time.Second
	politeAttempts = 3
)

func newTransport() http.RoundTripper {
	return &politeTransport{inner: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConns:          32,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       60 * time.Second,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: responseTimeout,
	}}
}

// politeTransport waits as long as a registry asks (Retry-After), within reason, before it asks again.
type politeTransport struct{ inner http.RoundTripper }

func (t *politeTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		response, err := t.inner.RoundTrip(request)
		if err != nil || attempt == politeAttempts || request.Body != nil {
			return response, err
		}
		if response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusServiceUnavailable {
			return response, nil
		}
		wait, asked := retryAfter(response.Header.Get("Retry-After"), time.Now())
		if !asked {
			return response, nil
		}
		if err := errors.Join(response.Body.Close(), sleep(request.Context(), wait)); err != nil {
			return nil, err
		}
	}
}

// retryAfter reads the header's two forms, seconds and a date.
func retryAfter(value string, now time.Time) (wait time.Duration, asked bool) {
	if seconds, err := strconv.Atoi(value); err == nil && seconds >= 0 {
		return min(time.Duration(min(seconds, 3600))*time.Second, maxRetryAfter), true
	}
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(now), 0), maxRetryAfter), true
	}
	return 0, false
}

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retry repeats an attempt that failed with fault.Unavailable.
func retry(ctx context.Context, backoff time.Duration, attempt func() error) error {
	for tried := 1; ; tried++ {
		err := attempt()
		if err == nil || tried == layerAttempts || fault.KindOf(err) != fault.Unavailable || ctx.Err() != nil {
			return err
		}
		if err := sleep(ctx, backoff+rand.N(backoff/4)); err != nil {
			return err
		}
		backoff *= 2
	}
}

// plainHTTPGuard bounds the size of manifests, and keeps credentials and images off unencrypted connections: only loopback hosts, and the one host that was
// allowed, may be spoken to without TLS.
type plainHTTPGuard struct {
	inner http.RoundTripper
	// registry is named in errors, allowed is a host name without port.
	registry, allowed string
}

func (g *plainHTTPGuard) RoundTrip(request *http.Request) (*http.Response, error) {
	host := request.URL.Hostname()
	if request.URL.Scheme == "https" || isLoopback(host) || g.allowed != "" && host == g.allowed {
		response, err := g.inner.RoundTrip(request)
		if err == nil {
			boundManifest(request, response)
		}
		return response, err
	}
	return nil, fault.New(fault.Unavailable, "registry %s leads to %s by plain HTTP; allow that for this pull (plain_http) if you trust the network", g.registry, host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// hostname is a registry's name without its port.
func hostname(registry string) string {
	if host, _, err := net.SplitHostPort(registry); err == nil {
		return host
	}
	return strings.Trim(registry, "[]")
}

// stallGuard closes a stream when nothing arrives, which ends the read that waits.
type stallGuard struct {
	io.ReadCloser
	timer   *time.Timer
	timeout time.Duration
}

func closeWhenStalled(stream io.ReadCloser, timeout time.Duration) *stallGuard {
	return &stallGuard{ReadCloser: stream, timeout: timeout, timer: time.AfterFunc(timeout, func() { _ = stream.Close() })}
}

func (g *stallGuard) Read(p []byte) (int, error) {
	n, err := g.ReadCloser.Read(p)
	g.timer.Reset(g.timeout)
	return n, err
}

func (g *stallGuard) Close() error {
	g.timer.Stop()
	return g.ReadCloser.Close()
}
