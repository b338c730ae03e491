package service

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"aenv/native/internal/keeper/logfile"
)

const (
	defaultLogLimitBytes = 8 << 20
	defaultStopTimeout   = 10 * time.Second
)

// Definition is one service as the configuration describes it.
type Definition struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	// Env is the whole environment; PATH is added when missing.
	Env map[string]string `json:"env"`
	Cwd string            `json:"cwd"`
	// LogFile gets what the service writes to its standard output and error.
	LogFile string `json:"logFile"`
	// LogLimitBytes 0 means 8 MiB.
	LogLimitBytes int64 `json:"logLimitBytes"`
	// PidFile holds the pid while the service runs.
	PidFile string `json:"pidFile"`
	// StopTimeoutMs is how long the service may take to end after SIGTERM. 0 means 10 s.
	StopTimeoutMs int64 `json:"stopTimeoutMs"`
}

// Validate says what is wrong with a definition.
func (d Definition) Validate() error {
	switch {
	case d.Name == "":
		return fmt.Errorf("service without a name")
	case len(d.Argv) == 0 || d.Argv[0] == "":
		return fmt.Errorf("service %s: argv is empty", d.Name)
	case d.Cwd != "" && !filepath.IsAbs(d.Cwd):
		return fmt.Errorf("service %s: cwd %q is not absolute", d.Name, d.Cwd)
	case !filepath.IsAbs(d.LogFile):
		return fmt.Errorf("service %s: logFile %q is not absolute", d.Name, d.LogFile)
	case !filepath.IsAbs(d.PidFile):
		return fmt.Errorf("service %s: pidFile %q is not absolute", d.Name, d.PidFile)
	case d.LogLimitBytes < 0 || d.LogLimitBytes > logfile.MaxLimitBytes:
		return fmt.Errorf("service %s: logLimitBytes %d is not within 0 and %d", d.Name, d.LogLimitBytes, logfile.MaxLimitBytes)
	case d.StopTimeoutMs < 0:
		return fmt.Errorf("service %s: stopTimeoutMs %d is negative", d.Name, d.StopTimeoutMs)
	}
	return nil
}

func (d Definition) logLimitBytes() int64 {
	if d.LogLimitBytes == 0 {
		return defaultLogLimitBytes
	}
	return d.LogLimitBytes
}

func (d Definition) stopTimeout() time.Duration {
	if d.StopTimeoutMs == 0 {
		return defaultStopTimeout
	}
	return time.Duration(d.StopTimeoutMs) * time.Millisecond
}

// digest names all that a running process was given: when it differs, the process has to be replaced.
func (d Definition) digest() (string, error) {
	raw, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}
