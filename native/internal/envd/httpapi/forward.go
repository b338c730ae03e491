package httpapi

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"aenv/native/internal/envd/pieces"
	"aenv/native/internal/envd/tunnel"
)

// forwardProtocol is what the Upgrade header asks for: from the answer on, the connection carries the service's bytes.
const forwardProtocol = "aenv-tcp"

// getTunnel is getForward for clients: the guard in front has asked for the access token.
func (s *Server) getTunnel(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	s.forward(w, r)
}

// getForward connects the caller with a port on the sandbox's loopback. It is for who holds the init key, like postInit:
// who may reach which port is decided outside.
func (s *Server) getForward(w http.ResponseWriter, r *http.Request) {
	// What follows a refused request may be the service's bytes already.
	w.Header().Set("Connection", "close")
	if !s.Identity.HoldsKey(r.Header.Get(initKeyHeader)) {
		refuseKey(w)
		return
	}
	s.forward(w, r)
}

func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("port")
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("port must be a number from 1 to 65535, not %q", text))
		return
	}
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), forwardProtocol) {
		w.Header().Set("Upgrade", forwardProtocol)
		writeError(w, http.StatusUpgradeRequired, "ask for Upgrade: "+forwardProtocol+" by HTTP/1.1")
		return
	}
	service, err := s.tunnels.Open(r.Context(), uint16(port))
	if err != nil {
		refuseForward(w, uint16(port), err)
		return
	}
	defer s.tunnels.Close(service)
	client, head, err := takeOver(w)
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	_, err = client.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + forwardProtocol + "\r\n\r\n"))
	if err != nil {
		client.Close()
		return
	}
	tunnel.Join(client, service, head)
}

// refuseForward says why there is no tunnel.
func refuseForward(w http.ResponseWriter, port uint16, err error) {
	status := http.StatusBadGateway
	if errors.Is(err, tunnel.ErrTooMany) {
		status = http.StatusServiceUnavailable
	}
	reason := "unreachable"
	switch {
	case errors.Is(err, tunnel.ErrTooMany):
		reason = "too-many"
	case errors.Is(err, tunnel.ErrNotOpen):
		reason = "not-open"
	}
	writeJSON(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Port    uint16 `json:"port"`
		Reason  string `json:"reason"`
	}{status, err.Error(), port, reason})
}

// takeOver takes the connection from the HTTP server, with what the client has sent behind its request.
func takeOver(w http.ResponseWriter) (client *net.TCPConn, head []byte, err error) {
	hijacked, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("the connection cannot be taken over: %w", err)
	}
	conn, ok := hijacked.(*pieces.Conn)
	if !ok {
		hijacked.Close()
		return nil, nil, fmt.Errorf("a %T cannot be taken over", hijacked)
	}
	// There is always as much to peek at as there is buffered.
	head, _ = buffered.Reader.Peek(buffered.Reader.Buffered())
	client, ahead := conn.Detach()
	if err := client.SetDeadline(time.Time{}); err != nil {
		client.Close()
		return nil, nil, err
	}
	return client, slices.Concat(head, ahead), nil
}
