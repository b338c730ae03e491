package keeper

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"aenv/native/internal/keeper/service"
)

// Config is the keeper's configuration file. Services are started in their order and stopped in the reverse one.
type Config struct {
	// Socket is where the keeper's API listens (mode 0600).
	Socket string `json:"socket"`
	// RunDir holds keeper.pid and what the next keeper needs: keeper.services.json and keeper.logs.
	RunDir   string `json:"runDir"`
	LockFile string `json:"lockFile"`
	// LogFile is where whoever starts the keeper appends its standard error to; it is bounded like every other log. Empty:
	// somebody else sees to it.
	LogFile string `json:"logFile"`
	// Version is reported by Status.
	Version  string               `json:"version"`
	Services []service.Definition `json:"services"`
}

// LoadConfig reads and checks a configuration file.
func LoadConfig(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	var config Config
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&config); err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	if err := config.validate(); err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return config, nil
}

func (c Config) validate() error {
	for _, field := range []struct{ name, value string }{
		{"socket", c.Socket}, {"runDir", c.RunDir}, {"lockFile", c.LockFile},
	} {
		if !filepath.IsAbs(field.value) {
			return fmt.Errorf("%s %q is not an absolute path", field.name, field.value)
		}
	}
	if c.LogFile != "" && !filepath.IsAbs(c.LogFile) {
		return fmt.Errorf("logFile %q is not an absolute path", c.LogFile)
	}
	seen := map[string]bool{}
	for _, d := range c.Services {
		if err := d.Validate(); err != nil {
			return err
		}
		if seen[d.Name] {
			return fmt.Errorf("service %s is there twice", d.Name)
		}
		seen[d.Name] = true
	}
	return nil
}

func (c Config) pidFile() string      { return filepath.Join(c.RunDir, "keeper.pid") }
func (c Config) servicesFile() string { return filepath.Join(c.RunDir, "keeper.services.json") }
func (c Config) logsFile() string     { return filepath.Join(c.RunDir, "keeper.logs") }
