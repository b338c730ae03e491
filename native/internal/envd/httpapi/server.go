// Package httpapi is the agent's face: it puts the two services and the plain HTTP routes behind one handler, with
// access control in front.
package httpapi

import (
	"encoding/json"
	"fmt"
	"log"
	"math"
	"net/http"
	"runtime/debug"
	"strings"

	"connectrpc.com/connect"

	"aenv/native/gen/filesystem/filesystemconnect"
	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/envd/disk"
	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/guest"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/logbook"
	"aenv/native/internal/envd/process"
	"aenv/native/internal/envd/stream"
	"aenv/native/internal/envd/tunnel"
)

// Server answers every route of the agent.
type Server struct {
	Identity   *identity.Store
	Process    *process.Service
	Filesystem *filesystem.Service
	// Guest is nil where the agent does not own its machine.
	Guest *guest.Guest
	// OnRestore is run after each restore, where the sandbox has it.
	OnRestore process.Hook
	// Disk is nil where the machine has none that could be frozen.
	Disk *disk.Disk
	// Log is what the node takes away; nil: nothing is logged.
	Log *logbook.Book

	// handler is what Handler returned.
	handler http.Handler
	files   files
	tunnels tunnel.Tunnels
	// metrics is for whoever asks, nodeMetrics for the node alone: what one reads must not shorten the other's interval.
	metrics, nodeMetrics sampler
}

// Handler builds the routes. It is called once.
func (s *Server) Handler() http.Handler {
	s.files.identity = s.Identity
	s.files.idle = transferIdleTime
	// Answers are never compressed: they are small or a stream, and the client is near.
	options := []connect.HandlerOption{
		limitMessages(),
		connect.WithCompressMinBytes(math.MaxInt32),
	}
	processPath, processHandler := processconnect.NewProcessHandler(s.Process, options...)
	filesystemPath, filesystemHandler := filesystemconnect.NewFilesystemHandler(s.Filesystem, options...)

	guarded := http.NewServeMux()
	large := newBudget()
	guarded.Handle(processPath, rpc(large.wrap(processHandler)))
	guarded.Handle(filesystemPath, rpc(large.wrap(filesystemHandler)))
	guarded.HandleFunc("/metrics", only("GET", s.getMetrics))
	guarded.HandleFunc("/envs", only("GET", s.getEnvs))
	guarded.HandleFunc("/archive", s.archive)
	guarded.HandleFunc("/tunnel", only("GET", s.getTunnel))
	guarded.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, fmt.Sprintf("no route for %s %s", r.Method, r.URL.Path))
	})

	mux := http.NewServeMux()
	mux.HandleFunc("/health", only("GET", getHealth))
	mux.HandleFunc("/init", only("POST", s.postInit))
	mux.HandleFunc("/memory", only("POST", s.postMemory))
	mux.HandleFunc("/forward", only("GET", s.getForward))
	mux.HandleFunc("/fsfreeze", only("POST", s.postDisk((*disk.Disk).Freeze)))
	mux.HandleFunc("/fsthaw", only("POST", s.postDisk((*disk.Disk).Thaw)))
	mux.HandleFunc("/telemetry", only("POST", s.postTelemetry))
	// Files take a signature instead of the token.
	mux.HandleFunc("/files", s.files.serve)
	mux.Handle("/", s.requireToken(guarded))
	s.handler = recovering(allowBrowsers(mux))
	return s.handler
}

// rpc prepares a request for connect-go: no compressed answers, no parameters in its media type, and deadlines of streams
// are kept by the services.
func rpc(next http.Handler) http.Handler {
	return stream.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
		r.Header.Set("Content-Type", strings.ToLower(strings.TrimSpace(kind)))
		r.Header.Del("Accept-Encoding")
		r.Header.Del("Connect-Accept-Encoding")
		r.Header.Del("Grpc-Accept-Encoding")
		next.ServeHTTP(w, r)
	}))
}

func only(method string, handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (r.Method != http.MethodHead || method != http.MethodGet) {
			w.Header().Set("Allow", method)
			writeError(w, http.StatusMethodNotAllowed, fmt.Sprintf("%s takes %s only", r.URL.Path, method))
			return
		}
		handle(w, r)
	}
}

func getHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) getEnvs(w http.ResponseWriter, _ *http.Request) {
	env := s.Identity.Current().EnvVars
	if env == nil {
		env = map[string]string{}
	}
	writeJSON(w, http.StatusOK, env)
}

// recovering turns a panic of a handler into a log line and, if nothing was sent yet, a 500.
func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			problem := recover()
			if problem == nil {
				return
			}
			if problem == http.ErrAbortHandler {
				panic(problem)
			}
			log.Printf("panic in %s %s: %v\n%s", r.Method, r.URL.Path, problem, debug.Stack())
			writeError(w, http.StatusInternalServerError, "internal error of the agent")
		}()
		next.ServeHTTP(w, r)
	})
}

// allowBrowsers answers preflight requests and lets pages of any origin read the answers; access is by token.
func allowBrowsers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") == "" {
			next.ServeHTTP(w, r)
			return
		}
		header := w.Header()
		header.Set("Access-Control-Allow-Origin", "*")
		header.Set("Access-Control-Expose-Headers", strings.Join([]string{
			"Content-Disposition", "Content-Encoding", "Content-Range", "Connect-Content-Encoding", "Grpc-Status", "Grpc-Message",
		}, ", "))
		if r.Method != http.MethodOptions {
			next.ServeHTTP(w, r)
			return
		}
		header.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		header.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
		header.Set("Access-Control-Max-Age", "7200")
		w.WriteHeader(http.StatusNoContent)
	})
}

// writeError answers with the error shape of every plain route.
func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, message})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
