// Package routes is the edge's copy of aenvd's route table. The wire is described in src/proxy/wire.ts.
package routes

import "time"

// Route is where traffic for a sandbox goes, as aenvd's domain/route.ts has it.
type Route struct {
	SandboxID  string `json:"sandboxId"`
	Generation int    `json:"generation"`
	// Address is there while it runs: its ports are reached at it from this host.
	Address string `json:"address"`
	// AutoResume: while it is paused, traffic resumes it.
	AutoResume bool `json:"autoResume"`
	// AccessToken: a paused, secured sandbox is woken through its agent's port only by who shows this.
	AccessToken string `json:"accessToken"`
	// TrafficToken: ports but the agent's are open only to who shows this.
	TrafficToken string `json:"trafficToken"`
	// MaskHost is what services are told in the place of the Host that was asked, with ${PORT} for the port.
	MaskHost string `json:"maskHost"`
	// AgentKey opens the agent's way to services on the sandbox's loopback.
	AgentKey string `json:"agentKey"`
	// RestAfterMs is there while the sandbox is to stand still: whoever wants to send asks aenvd first. One that is in use, or was
	// in so many milliseconds, is reported as busy with the acknowledgement.
	RestAfterMs *int64 `json:"restAfterMs"`
}

func (r *Route) restAfter() time.Duration { return time.Duration(*r.RestAfterMs) * time.Millisecond }

// change: without a route the sandbox is gone.
type change struct {
	Revision  int    `json:"revision"`
	SandboxID string `json:"sandboxId"`
	Route     *Route `json:"route"`
}

// feedLine is one of both.
type feedLine struct {
	Snapshot *struct {
		Epoch    string  `json:"epoch"`
		Revision int     `json:"revision"`
		Routes   []Route `json:"routes"`
	} `json:"snapshot"`
	Change *change `json:"change"`
}

// lookedUp is what aenvd answers about one sandbox, as of a revision of its table.
type lookedUp struct {
	Epoch    string `json:"epoch"`
	Revision int    `json:"revision"`
	Route    *Route `json:"route"`
}
