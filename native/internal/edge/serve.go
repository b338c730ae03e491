package edge

import (
	"context"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"aenv/native/internal/edge/answer"
	"aenv/native/internal/edge/forward"
	"aenv/native/internal/edge/relay"
	"aenv/native/internal/edge/routes"
	"aenv/native/internal/edge/target"
	"aenv/native/internal/edge/upstream"
)

// rerouteWait is before a request that nobody has taken yet is sent to the next incarnation.
const rerouteWait = 10 * time.Millisecond

// refuseTime is for a client to take an answer of the edge's own.
const refuseTime = 30 * time.Second

type connectionKey struct{}

// withConnection lets a request reset the connection it came by.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

func (e *Edge) serve(w http.ResponseWriter, r *http.Request) {
	said, err := e.handle(w, r)
	switch {
	case said != nil:
		refuse(w, r, said)
	case err == nil:
	case errors.Is(err, forward.ErrCut):
		cut(r)
	default:
		// The client going away is its own business.
		panic(http.ErrAbortHandler)
	}
}

// handle returns what to answer when nobody else has.
func (e *Edge) handle(w http.ResponseWriter, r *http.Request) (*answer.Answer, error) {
	if r.Method == http.MethodConnect {
		return answer.MethodRefused(r.Method), nil
	}
	if !forward.IsSpeakable(r) {
		return answer.Invalid("method, path or host hold what HTTP/1.1 cannot carry, or there are two hosts"), nil
	}
	if upstream.HasTooManyFields(r.Header, r.Trailer) {
		return answer.TooManyFields(upstream.MaxFields), nil
	}
	head := target.Head{URI: r.RequestURI, Host: r.Host, Header: r.Header.Get}
	to := target.Of(head, e.options.Domain)
	switch {
	case to.Kind == target.Invalid:
		return answer.Invalid(to.Message), nil
	case to.Kind == target.API:
		return e.toAPI(w, r)
	case to.IsReserved():
		return answer.Reserved(to.Path), nil
	}
	for {
		known, said, err := e.resolve(r, to)
		if said != nil || err != nil {
			return said, err
		}
		err = e.toSandbox(w, r, to, known)
		if err == nil || errors.Is(err, forward.ErrCut) || errors.Is(err, forward.ErrClientGone) {
			return nil, err
		}
		if errors.Is(err, upstream.ErrFull) {
			return answer.TooManyConnections(to.SandboxID), nil
		}
		if !known.Way.Retired() {
			return unreached(err, to), nil
		}
		if errors.Is(err, forward.ErrLost) {
			return answer.NotFound(to.SandboxID), nil
		}
		// Nothing was sent yet: the next incarnation gets it, if there is one.
		if !pause(r.Context(), rerouteWait) {
			return nil, forward.ErrClientGone
		}
	}
}

// resolve is where the target's traffic goes now, waking it when it may be woken; or what to answer instead.
func (e *Edge) resolve(r *http.Request, to target.Target) (known routes.Known[*upstream.Pool], said *answer.Answer, err error) {
	known, ok, err := e.table.Find(r.Context(), to.SandboxID)
	switch {
	case err != nil:
		return known, answer.ControlDown(), nil
	case !ok:
		return known, answer.NotFound(to.SandboxID), nil
	}
	if said := admit(known.Route, to, r.Header); said != nil {
		return known, said, nil
	}
	if known.Address != "" {
		return known, nil, nil
	}
	if said := e.wake(r, known.Route, to); said != nil {
		return known, said, nil
	}
	known, _ = e.table.Known(to.SandboxID)
	if known.Address == "" {
		return known, answer.NotFound(to.SandboxID), nil
	}
	return known, nil, nil
}

// admit: ports of a sandbox without public traffic are open to who has its token. The agent has rules of its own.
func admit(route routes.Route, to target.Target, header http.Header) *answer.Answer {
	if route.TrafficToken == "" || to.Port == target.AgentPort {
		return nil
	}
	shown := header.Get(answer.TrafficTokenHeader)
	switch {
	case shown == "":
		return answer.TrafficTokenMissing(to.SandboxID)
	case !isSame(shown, route.TrafficToken):
		return answer.TrafficTokenWrong(to.SandboxID)
	}
	return nil
}

func (e *Edge) wake(r *http.Request, route routes.Route, to target.Target) *answer.Answer {
	switch {
	case !route.AutoResume && to.ViaProxyPath:
		return answer.Paused(to.SandboxID)
	case !route.AutoResume:
		return answer.NotFound(to.SandboxID)
	}
	// A secured sandbox's agent wakes it only for who could use it; other ports are its services' own business.
	if to.Port == target.AgentPort && route.AccessToken != "" && !isSame(r.Header.Get("X-Access-Token"), route.AccessToken) {
		return answer.WakeRefused(to.SandboxID)
	}
	err := e.table.Wake(r.Context(), to.SandboxID)
	var refused *routes.RefusedError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &refused):
		return answer.ControlDown()
	case refused.Status == http.StatusConflict:
		return answer.InTransition(to.SandboxID)
	case refused.Status == http.StatusTooManyRequests:
		return answer.NoRoom(to.SandboxID)
	}
	return answer.NotWoken(to.SandboxID)
}

func isSame(shown, wanted string) bool {
	return subtle.ConstantTimeCompare([]byte(shown), []byte(wanted)) == 1
}

func (e *Edge) toSandbox(w http.ResponseWriter, r *http.Request, to target.Target, known routes.Known[*upstream.Pool]) error {
	way := tellingCaller(forward.To{
		Pool: known.Way,
		Port: upstream.Port{Number: to.Port, AgentKey: known.AgentKey},
		Path: to.Path,
		Drop: isOurs,
	}, r)
	if known.MaskHost != "" && to.Port != target.AgentPort {
		way.Host = strings.ReplaceAll(known.MaskHost, "${PORT}", strconv.Itoa(to.Port))
	}
	if !forward.IsUpgrade(r) {
		return forward.Forward(w, r, way)
	}
	return forward.Upgrade(w, r, way, func(err error) []byte {
		if known.Way.Retired() {
			return answer.NotFound(to.SandboxID).Raw()
		}
		return unreached(err, to).Raw()
	})
}

// unreached: the sandbox is there, and nothing in it has answered.
func unreached(err error, to target.Target) *answer.Answer {
	if errors.Is(err, upstream.ErrAsleep) {
		return answer.Asleep(to.SandboxID)
	}
	return answer.PortClosed(to.SandboxID, to.Port)
}

// isOurs: what is said to the edge, and keys of the platform that a client sends along, are no business of what runs inside.
func isOurs(name string, values []string) bool {
	switch name {
	case "E2b-Sandbox-Id", "E2b-Sandbox-Port", "X-Agentenv-Sandbox-Id", "X-Agentenv-Target-Port", answer.TrafficTokenHeader:
		return true
	case "X-Api-Key":
		return len(values) > 0 && strings.HasPrefix(values[0], "e2b_")
	}
	return false
}

// refuse answers by itself. HTML is for people.
func refuse(w http.ResponseWriter, r *http.Request, said *answer.Answer) {
	text := said.Header(w.Header(), answer.WantsHTML(r.Header))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(refuseTime))
	w.WriteHeader(said.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(text)
	}
	forward.Refused(w, r)
}

// cut ends the client's connection, or its stream, so that what it has is not taken for whole.
func cut(r *http.Request) {
	if conn, ok := r.Context().Value(connectionKey{}).(net.Conn); ok && r.ProtoMajor == 1 {
		relay.Reset(conn)
	}
	panic(http.ErrAbortHandler)
}

// pause is false when the client has left meanwhile.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}
