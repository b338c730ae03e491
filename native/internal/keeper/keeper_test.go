package keeper

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	return Config{Socket: filepath.Join(dir, "keeper.sock"), RunDir: dir, LockFile: filepath.Join(dir, "keeper.lock")}
}

func TestASecondKeeperIsRefusedAndToldByWhom(t *testing.T) {
	config, log := testConfig(t), slog.New(slog.DiscardHandler)
	first, err := Start(config, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(config, log); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("second keeper: %v", err)
	}
	if info, err := os.Stat(config.Socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket after the refusal: %v, %v", info, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{config.Socket, config.pidFile()} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s after the end: %v", path, err)
		}
	}
}

func TestAKeeperWaitsForTheLastMomentOfTheOneBefore(t *testing.T) {
	config := testConfig(t)
	before, err := lock(config.LockFile, config.pidFile())
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { before.Close() })
	next, err := Start(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestConfigurationErrorsNameTheField(t *testing.T) {
	for text, want := range map[string]string{
		`{"socket":"s"}`: `socket "s"`,
		`{"socket":"/s","runDir":"/r","lockFile":"/l","sevrices":[]}`:                     "sevrices",
		`{"socket":"/s","runDir":"/r","lockFile":"/l","services":[{"name":"x"}]}`:         "service x: argv",
		`{"socket":"/s","runDir":"/r","lockFile":"/l","services":[{"argv":["/bin/sh"]}]}`: "without a name",
	} {
		path := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
