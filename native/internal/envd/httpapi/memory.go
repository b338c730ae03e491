package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"aenv/native/internal/envd/logbook"
)

const (
	memoryMaxBytes = 4 << 10
	maxHostKills   = 1 << 16
)

// memoryBody is what the node says about the sandbox's memory, which only the node can see as a whole.
type memoryBody struct {
	// HostKilled is how many processes the host's kernel has killed since the node last said so. When it is 0 the memory
	// is about to run out, and the agent is to free some.
	HostKilled int `json:"hostKilled"`
}

type victimBody struct {
	PID    int    `json:"pid"`
	Name   string `json:"name"`
	Others int    `json:"others"`
	Bytes  uint64 `json:"bytes"`
}

// postMemory is for who holds the init key, like postInit.
func (s *Server) postMemory(w http.ResponseWriter, r *http.Request) {
	if !s.Identity.HoldsKey(r.Header.Get(initKeyHeader)) {
		refuseKey(w)
		return
	}
	var body memoryBody
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, memoryMaxBytes)).Decode(&body)
	if err == nil && (body.HostKilled < 0 || body.HostKilled > maxHostKills) {
		err = fmt.Errorf("hostKilled must be from 0 to %d", maxHostKills)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("the body is not valid: %v", err))
		return
	}
	if body.HostKilled > 0 {
		s.Process.HostKilled(body.HostKilled)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	victim, found := s.Process.FreeMemory(r.Context())
	if !found {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.Log.Add(logbook.Error, agentLogger, fmt.Sprintf("Out of memory: process %d (%s) was killed", victim.PID, victim.Name), logbook.Fields{
		"event_type": "out_of_memory", "pid": strconv.Itoa(victim.PID), "bytes": strconv.FormatUint(victim.Bytes, 10),
	})
	writeJSON(w, http.StatusOK, victimBody{victim.PID, victim.Name, victim.Others, victim.Bytes})
}
