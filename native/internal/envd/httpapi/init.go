package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"aenv/native/internal/envd/guest"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/logbook"
)

const (
	initMaxBytes  = 8 << 20
	initKeyHeader = "X-Init-Key"
)

var generationIDs = regexp.MustCompile("^[0-9a-f]{0,64}$")

// initBody is what the node says to a machine that it has just started or restored. Unknown fields are ignored.
type initBody struct {
	AccessToken    string            `json:"accessToken"`
	EnvVars        map[string]string `json:"envVars"`
	Timestamp      timestamp         `json:"timestamp"`
	DefaultUser    string            `json:"defaultUser"`
	DefaultWorkdir string            `json:"defaultWorkdir"`
	SandboxID      string            `json:"sandboxId"`
	TemplateID     string            `json:"templateId"`
	Hostname       string            `json:"hostname"`
	InitKey        string            `json:"initKey"`
	Entropy        []byte            `json:"entropy"`
	// Generation counts the starts of the sandbox's state, 0 being that of its template; GenerationID is another at each, and the
	// same only in an init that is said again.
	Generation   int    `json:"generation"`
	GenerationID string `json:"generationId"`
	// Rehearse: nobody waits for this machine yet, so what is slow for the first time is done now.
	Rehearse bool `json:"rehearse"`
}

// timestamp is an RFC 3339 text or a number of milliseconds since 1970.
type timestamp struct{ time.Time }

func (t *timestamp) UnmarshalJSON(data []byte) error {
	var ms float64
	if err := json.Unmarshal(data, &ms); err == nil {
		if string(data) != "null" {
			t.Time = time.UnixMilli(int64(ms))
		}
		return nil
	}
	return json.Unmarshal(data, &t.Time)
}

// postInit replaces the identity. The key keeps programs inside the sandbox from doing the same.
func (s *Server) postInit(w http.ResponseWriter, r *http.Request) {
	// Looked at before the body is: it is large, and others may send it too.
	if !s.Identity.HoldsKey(r.Header.Get(initKeyHeader)) {
		refuseKey(w)
		return
	}
	body, err := readInit(http.MaxBytesReader(w, r.Body, initMaxBytes))
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	before := s.Identity.Current()
	now := identity.Identity{
		AccessToken:    body.AccessToken,
		EnvVars:        body.EnvVars,
		DefaultUser:    body.DefaultUser,
		DefaultWorkdir: body.DefaultWorkdir,
		SandboxID:      body.SandboxID,
		TemplateID:     body.TemplateID,
		Hostname:       body.Hostname,
		Generation:     body.Generation,
		GenerationID:   body.GenerationID,
	}
	if !s.Identity.Accept(r.Header.Get(initKeyHeader), body.InitKey, now) {
		refuseKey(w)
		return
	}
	if s.Guest != nil {
		facts := guest.Facts{
			SandboxID: body.SandboxID, TemplateID: body.TemplateID, Hostname: body.Hostname,
			Time: body.Timestamp.Time, Entropy: body.Entropy,
		}
		if body.GenerationID != before.GenerationID {
			// A program that watches the file is not woken by an init that is said again.
			facts.Generation = guest.Generation{Number: body.Generation, ID: body.GenerationID}
		}
		if !now.NamesAs(before) {
			// A default user that the image does not have is an error of the requests that need it, not of the init.
			facts.User, _ = s.Identity.User("")
			s.Guest.Name(facts)
		}
		s.Guest.Renew(facts)
	}
	if body.SandboxID != before.SandboxID || before.Generation == 0 && body.Generation > 0 {
		// Said before it was this sandbox, which it may have been told ahead that it will be.
		s.Log.Clear()
	}
	if body.Generation > 0 && body.GenerationID != before.GenerationID {
		s.runHook(r.Context(), body)
	}
	if body.Rehearse {
		s.rehearse(r.Context())
	}
	s.Log.Add(logbook.Info, agentLogger, "The agent is ready", logbook.Fields{"event_type": "agent_ready"})
	w.WriteHeader(http.StatusNoContent)
	// A sandbox waits for this answer, and not for what follows.
	_ = http.NewResponseController(w).Flush()
	// What the machine did until now is none of this life's.
	s.nodeMetrics.usedPercent(time.Now())
}

func refuseKey(w http.ResponseWriter) {
	writeError(w, http.StatusUnauthorized, "the X-Init-Key header is missing or wrong")
}

func readInit(from io.Reader) (initBody, error) {
	var body initBody
	if err := json.NewDecoder(from).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
		return body, fmt.Errorf("the body is not a valid init: %w", err)
	}
	for name, value := range body.EnvVars {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return body, fmt.Errorf("envVars: %q: a name is not empty and has no '=', and neither it nor its value has a NUL", name)
		}
	}
	if body.Generation < 0 || !generationIDs.MatchString(body.GenerationID) {
		return body, errors.New("generation: a number from 0 on; generationId: hexadecimal digits, at most 64")
	}
	return body, nil
}

// runHook has the sandbox's own program bring up to date what was restored, before anybody can run a command.
func (s *Server) runHook(ctx context.Context, body initBody) {
	env := map[string]string{"AENV_SANDBOX_ID": body.SandboxID, "AENV_GENERATION": strconv.Itoa(body.Generation), "AENV_GENERATION_ID": body.GenerationID}
	if err := s.Process.RunHook(ctx, s.OnRestore, env); err != nil {
		s.Log.Add(logbook.Warn, agentLogger, err.Error(), logbook.Fields{"event_type": "hook_failed"})
	}
}
