package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

const (
	telemetryMaxBytes = 1 << 10
	// entriesMaxBytes bounds the entries of one answer; the node asks again for the rest.
	entriesMaxBytes = 128 << 10

	agentLogger = "envd"
)

// telemetryBody is the node's question.
type telemetryBody struct {
	// After is the id of the last log entry that the node has stored; entries up to it are forgotten.
	After int64 `json:"after"`
	// Metrics asks for a reading too; that of the CPU is since the last one asked for.
	Metrics bool `json:"metrics"`
	// Await holds the answer back until there is an entry after After, and brings nothing: the node asks again for it.
	Await bool `json:"await"`
}

type telemetryAnswer struct {
	Metrics *metricsBody      `json:"metrics,omitempty"`
	Entries []json.RawMessage `json:"entries"`
	More    bool              `json:"more"`
}

// postTelemetry gives the node all it keeps of a running sandbox, by one request. It is for who holds the init key, like
// postInit.
func (s *Server) postTelemetry(w http.ResponseWriter, r *http.Request) {
	if !s.Identity.HoldsKey(r.Header.Get(initKeyHeader)) {
		writeError(w, http.StatusUnauthorized, "the X-Init-Key header is missing or wrong")
		return
	}
	var body telemetryBody
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, telemetryMaxBytes)).Decode(&body)
	if err != nil && !errors.Is(err, io.EOF) {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("the body is not valid: %v", err))
		return
	}
	if body.Await {
		s.Log.AwaitNewer(r.Context(), body.After)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.tell(w, body)
}

func (s *Server) tell(w http.ResponseWriter, body telemetryBody) {
	var answer telemetryAnswer
	if body.Metrics {
		reading := measure(&s.nodeMetrics)
		answer.Metrics = &reading
	}
	answer.Entries, answer.More = s.Log.Take(body.After, entriesMaxBytes)
	writeJSON(w, http.StatusOK, answer)
}
