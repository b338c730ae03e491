package edge

import (
	"net/http"
	"net/netip"
	"strings"

	"aenv/native/internal/edge/forward"
)

const (
	forwardedFor   = "X-Forwarded-For"
	forwardedHost  = "X-Forwarded-Host"
	forwardedProto = "X-Forwarded-Proto"
)

// saysWhoCalls: services believe these headers, so not just anybody may set them. Many read `_` as `-`.
func saysWhoCalls(name string) bool {
	name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	return strings.HasPrefix(name, "X-Forwarded-") || name == "Forwarded" || name == "X-Real-Ip"
}

// tellingCaller tells a service who calls, how, and which host was asked for. Only a peer on this host, where a proxy with TLS
// is, may say the first two otherwise.
func tellingCaller(way forward.To, r *http.Request) forward.To {
	peer, isLocal := callerOf(r)
	way.Extra = http.Header{forwardedHost: {r.Host}}
	if !isLocal || r.Header.Get(forwardedFor) == "" {
		way.Extra.Set(forwardedFor, peer)
	}
	if !isLocal || r.Header.Get(forwardedProto) == "" {
		way.Extra.Set(forwardedProto, schemeOf(r))
	}
	drop := way.Drop
	way.Drop = func(name string, values []string) bool {
		isOther := way.Extra[name] == nil && (isLocal || !saysWhoCalls(name))
		return !isOther || drop(name, values)
	}
	return way
}

// callerOf is the address at the other end of the request's connection, and whether that is on this host.
func callerOf(r *http.Request) (address string, isLocal bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "unknown", false
	}
	plain := peer.Addr().Unmap().WithZone("")
	return plain.String(), plain.IsLoopback()
}

func schemeOf(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}
