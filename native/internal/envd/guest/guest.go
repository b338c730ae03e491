// Package guest puts the small things of a sandbox right that an image does not bring and a restored machine has wrong:
// name resolution, host name, clock, the user's home, the files that say which sandbox this is.
//
// Everything here is best effort: an image may have any of these files missing, read-only or bind-mounted, and none of
// that may keep the agent from serving. What fails is logged.
package guest

import (
	"errors"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/filesystem"
	"aenv/native/internal/envd/users"
)

const (
	defaultResolvers = "nameserver 8.8.8.8\nnameserver 1.1.1.1\n"
	localhostLine    = "127.0.0.1\tlocalhost"
	localhost6Line   = "::1\tlocalhost ip6-localhost ip6-loopback"
	// hostnameAddress is where the host's own name points to, by Debian's custom.
	hostnameAddress = "127.0.1.1"
)

// Guest is the machine that the agent is pid 1 of.
type Guest struct {
	// Root is the folder taken for "/"; empty is "/". With another root nothing but files is touched.
	Root string
}

// Facts is what the platform tells about the machine.
type Facts struct {
	SandboxID  string
	TemplateID string
	Generation Generation
	// Hostname is left as it is when empty.
	Hostname string
	// Time is the host's clock; zero means unknown.
	Time time.Time
	// Entropy is mixed into the kernel's pool.
	Entropy []byte
	// User gets a home directory if it has none.
	User users.User
}

// Boot is called once when the agent starts.
func (g Guest) Boot() {
	hostname, err := os.Hostname()
	note("hostname", err)
	note("resolv.conf", g.ensureResolvers())
	note("hosts", g.updateHosts(hostname))
	note("tmp", g.ensureTemporary())
}

// Renew makes the machine the one of now: what no restore leaves as it should be.
func (g Guest) Renew(facts Facts) {
	if g.isReal() {
		note("clock", setClock(facts.Time))
		note("entropy", addEntropy(facts.Entropy))
	}
	note("generation", g.writeGeneration(facts.SandboxID, facts.Generation))
}

// Name makes the machine a sandbox: what it keeps as long as it is that one. Each file costs a sandbox a millisecond or so.
func (g Guest) Name(facts Facts) {
	if facts.Hostname != "" {
		note("hostname", g.setHostname(facts.Hostname))
		note("hosts", g.updateHosts(facts.Hostname))
	}
	note("identity files", g.writeIdentity(facts))
	note("home", g.ensureHome(facts.User))
}

func note(what string, err error) {
	if err != nil {
		log.Printf("guest: %s: %v", what, err)
	}
}

func (g Guest) isReal() bool { return g.Root == "" || g.Root == "/" }

func (g Guest) path(name string) string {
	if g.Root == "" {
		return name
	}
	return filepath.Join(g.Root, name)
}

// ensureResolvers writes name servers where there are none: no file, an empty one, a link to nowhere.
func (g Guest) ensureResolvers() error {
	path := g.path("/etc/resolv.conf")
	if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) != "" {
		return nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		// A link to nowhere would be followed by the write.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return replaceFile(path, defaultResolvers)
}

// updateHosts makes sure that localhost and the host's own name resolve, and touches no other line.
func (g Guest) updateHosts(hostname string) error {
	path := g.path("/etc/hosts")
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if next := hostsText(string(old), hostname); next != string(old) {
		return replaceFile(path, next)
	}
	return nil
}

func hostsText(old, hostname string) string {
	var lines []string
	hasLocalhost := false
	for line := range strings.SplitSeq(strings.TrimRight(old, "\n"), "\n") {
		field := strings.Fields(line)
		if len(field) > 1 && field[0] == hostnameAddress {
			continue
		}
		if len(field) > 1 && field[0] == "127.0.0.1" {
			hasLocalhost = true
		}
		if line != "" || len(lines) > 0 {
			lines = append(lines, line)
		}
	}
	if !hasLocalhost {
		lines = append([]string{localhostLine, localhost6Line}, lines...)
	}
	if hostname != "" && hostname != "localhost" {
		lines = append(lines, hostnameAddress+"\t"+hostname)
	}
	return strings.Join(lines, "\n") + "\n"
}

func (g Guest) setHostname(hostname string) error {
	if g.isReal() {
		if current, err := os.Hostname(); err != nil || current != hostname {
			note("sethostname", unix.Sethostname([]byte(hostname)))
		}
	}
	return replaceFile(g.path("/etc/hostname"), hostname+"\n")
}

func (g Guest) ensureTemporary() error {
	path := g.path("/tmp")
	if err := os.Mkdir(path, 0o777); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(path, 0o777|fs.ModeSticky)
}

// writeIdentity leaves the files that programs inside read to learn where they are.
func (g Guest) writeIdentity(facts Facts) error {
	dir := g.path("/run/e2b")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var problems []error
	for name, text := range map[string]string{".E2B_SANDBOX": "true", ".E2B_SANDBOX_ID": facts.SandboxID, ".E2B_TEMPLATE_ID": facts.TemplateID} {
		problems = append(problems, replaceFile(filepath.Join(dir, name), text))
	}
	return errors.Join(problems...)
}

func (g Guest) ensureHome(user users.User) error {
	if user.Home == "" || user.Home == "/" || !filepath.IsAbs(user.Home) {
		return nil
	}
	home := g.path(user.Home)
	if _, err := os.Stat(home); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil {
		return err
	}
	return filesystem.EnsureDirs(home, user)
}

// replaceFile writes a file so that readers see the old or the new text. A bind-mounted file cannot be renamed over and
// is written in place.
func replaceFile(path, text string) error {
	_, absent := os.Lstat(path)
	temporary := filepath.Join(filepath.Dir(path), filesystem.TemporaryName(absent == nil))
	err := os.WriteFile(temporary, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil {
		return nil
	}
	_ = os.Remove(temporary)
	if inPlace := os.WriteFile(path, []byte(text), 0o644); inPlace != nil {
		return errors.Join(err, inPlace)
	}
	return nil
}
