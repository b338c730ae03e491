package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	g.Apply(Facts{SandboxID: "iabc", TemplateID: "tpl", Hostname: "one", User: users.User{UID: 1000, GID: 1000, Home: "/home/user"}})
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
	g.Apply(Facts{Hostname: "two"})
	hosts := read(t, root, "etc/hosts")
	if !strings.Contains(hosts, "127.0.0.1\tlocalhost") || strings.Contains(hosts, "one") || strings.Count(hosts, "two") != 1 {
		t.Errorf("hosts: %q", hosts)
	}
	if text := read(t, root, "run/e2b/.E2B_SANDBOX_ID"); text != "" {
		t.Errorf("the old sandbox id stays: %q", text)
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
	g.Apply(Facts{Hostname: "box"})
	if text := read(t, root, "etc/hosts"); text != hosts+"127.0.1.1\tbox\n" {
		t.Errorf("hosts: %q", text)
	}
	if text := read(t, root, "etc/resolv.conf"); text != "nameserver 9.9.9.9\n" {
		t.Errorf("resolv.conf: %q", text)
	}
}
