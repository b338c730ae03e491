package guest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/users"
)

func read(t *testing.T, root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEmptyImageGetsWhatItNeeds(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../run/systemd/resolve/stub-resolv.conf", root+"/etc/resolv.conf"); err != nil {
		t.Fatal(err)
	}
	g := Guest{Root: root}
	g.Boot()
	g.Name(Facts{SandboxID: "iabc", TemplateID: "tpl", Hostname: "one", User: users.User{UID: 1000, GID: 1000, Home: "/home/user"}})
	if text := read(t, root, "etc/resolv.conf"); text != defaultResolvers {
		t.Errorf("resolv.conf: %q", text)
	}
	if text := read(t, root, "run/e2b/.E2B_SANDBOX_ID"); text != "iabc" {
		t.Errorf("sandbox id: %q", text)
	}
	if text := read(t, root, "etc/hostname"); text != "one\n" {
		t.Errorf("hostname: %q", text)
	}
	if info, err := os.Stat(root + "/home/user"); err != nil || !info.IsDir() {
		t.Errorf("home: %v", err)
	}
	// SNAP-07: a restored machine takes the new name and drops the old one.
	g.Name(Facts{Hostname: "two"})
	hosts := read(t, root, "etc/hosts")
	if !strings.Contains(hosts, "127.0.0.1\tlocalhost") || strings.Contains(hosts, "one") || strings.Count(hosts, "two") != 1 {
		t.Errorf("hosts: %q", hosts)
	}
	if text := read(t, root, "run/e2b/.E2B_SANDBOX_ID"); text != "" {
		t.Errorf("the old sandbox id stays: %q", text)
	}
}

// SNAP-01: what a program can tell by that it is a copy.
func TestSNAP01TheGenerationIsReadableAndReplacedInOneStep(t *testing.T) {
	root := t.TempDir()
	g := Guest{Root: root}
	g.Renew(Facts{SandboxID: "iabc", Generation: Generation{Number: 1, ID: "00ff"}})
	want := "AENV_SANDBOX_ID=iabc\nAENV_GENERATION=1\nAENV_GENERATION_ID=00ff\n"
	if text := read(t, root, "run/aenv/generation"); text != want {
		t.Errorf("%q", text)
	}
	open, err := os.Open(root + "/run/aenv/generation")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	g.Renew(Facts{SandboxID: "iabc", Generation: Generation{Number: 2, ID: "01ff"}})
	// Who has the old one open reads the old one whole.
	if text, err := io.ReadAll(open); string(text) != want || err != nil {
		t.Errorf("%q %v", text, err)
	}
	if text := read(t, root, "run/aenv/generation"); !strings.HasSuffix(text, "AENV_GENERATION=2\nAENV_GENERATION_ID=01ff\n") {
		t.Errorf("%q", text)
	}
	// An init that tells of none leaves it.
	g.Renew(Facts{SandboxID: "iabc"})
	if text := read(t, root, "run/aenv/generation"); !strings.HasSuffix(text, "01ff\n") {
		t.Errorf("%q", text)
	}
	if names, err := os.ReadDir(root + "/run/aenv"); len(names) != 1 || err != nil {
		t.Errorf("%v %v", names, err)
	}
}

func TestTheGenerationHasAnotherPlaceWhereRunCannotBe(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(root+"/run", []byte("a file"), 0o644); err != nil {
		t.Fatal(err)
	}
	Guest{Root: root}.Renew(Facts{SandboxID: "iabc", Generation: Generation{Number: 1, ID: "00ff"}})
	if text := read(t, root, "var/lib/aenv/generation"); !strings.HasSuffix(text, "=00ff\n") {
		t.Errorf("%q", text)
	}
}

// Root inside may put there what it likes: neither does the agent wait for a pipe, nor does it write where a link leads.
func TestTheGenerationTakesThePlaceOfWhateverIsThere(t *testing.T) {
	for what, put := range map[string]func(path, elsewhere string) error{
		"a pipe": func(path, _ string) error { return unix.Mkfifo(path, 0o600) },
		"a link": func(path, elsewhere string) error { return os.Symlink(elsewhere, path) },
	} {
		root, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "elsewhere")
		err := errors.Join(os.MkdirAll(root+"/run/aenv", 0o755), os.WriteFile(elsewhere, []byte("mine"), 0o600))
		if err := errors.Join(err, put(root+"/run/aenv/generation", elsewhere)); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Guest{Root: root}.Renew(Facts{SandboxID: "iabc", Generation: Generation{Number: 1, ID: "00ff"}})
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: it waits", what)
		}
		if text := read(t, root, "run/aenv/generation"); !strings.HasSuffix(text, "=00ff\n") {
			t.Errorf("%s: %q", what, text)
		}
		if text, err := os.ReadFile(elsewhere); string(text) != "mine" || err != nil {
			t.Errorf("%s: %q %v", what, text, err)
		}
	}
}

func TestExistingFilesAreKept(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	hosts := "# mine\n127.0.0.1 localhost mine\n10.0.0.1 db\n"
	for name, text := range map[string]string{"hosts": hosts, "resolv.conf": "nameserver 9.9.9.9\n"} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g := Guest{Root: root}
	g.Boot()
	g.Name(Facts{Hostname: "box"})
	if text := read(t, root, "etc/hosts"); text != hosts+"127.0.1.1\tbox\n" {
		t.Errorf("hosts: %q", text)
	}
	if text := read(t, root, "etc/resolv.conf"); text != "nameserver 9.9.9.9\n" {
		t.Errorf("resolv.conf: %q", text)
	}
}
