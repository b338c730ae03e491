package edge

import (
	"errors"
	"net"
	"net/http"
	"time"

	"aenv/native/internal/edge/answer"
	"aenv/native/internal/edge/forward"
	"aenv/native/internal/edge/upstream"
)

const (
	// apiPatience is how long a request waits for an aenvd that is being restarted.
	apiPatience = 15 * time.Second
	apiWait     = 100 * time.Millisecond
	// apiBodyIdle is for the next piece of a request's body.
	apiBodyIdle = time.Minute
	// peerHeader and schemeHeader tell aenvd who calls, and how; src/api/auth.ts reads them.
	peerHeader   = "X-Aenv-Peer"
	schemeHeader = "X-Aenv-Scheme"
)

// toAPI hands a request to aenvd. One that only reads is repeated while aenvd is away, others only when nothing was sent.
func (e *Edge) toAPI(w http.ResponseWriter, r *http.Request) (*answer.Answer, error) {
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	to := forward.To{
		Pool:     e.api,
		Path:     r.RequestURI,
		Drop:     func(name string, _ []string) bool { return name == peerHeader || name == schemeHeader },
		Extra:    http.Header{peerHeader: {peer}, schemeHeader: {schemeOf(r)}},
		BodyIdle: apiBodyIdle,
		// Node reads a trailer as if it stood in the head.
		NoTrailers: true,
	}
	mayRepeat := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !forward.HasBody(r)
	giveUp := time.Now().Add(apiPatience)
	for {
		err := forward.Forward(w, r, to)
		switch {
		case errors.Is(err, forward.ErrLost) && !mayRepeat:
			return answer.ControlLost(), nil
		case !errors.Is(err, forward.ErrLost) && !errors.Is(err, upstream.ErrClosed) && !errors.Is(err, upstream.ErrFull):
			return nil, err
		case time.Now().After(giveUp):
			return answer.ControlDown(), nil
		case !pause(r.Context(), apiWait):
			return nil, forward.ErrClientGone
		}
	}
}
