package spawn

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// program is a command of the shell whose output is read.
type program struct {
	t    *testing.T
	attr Attr
	path string
	argv []string
}

func shell(t *testing.T, script string) *program {
	t.Helper()
	return &program{t: t, path: "/bin/sh", argv: []string{"sh", "-c", script}, attr: Attr{Env: []string{"PATH=/usr/bin:/bin"}}}
}

// run returns what it writes and how it ends.
func (p *program) run() (output string, status unix.WaitStatus, err error) {
	p.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		p.t.Fatal(err)
	}
	defer null.Close()
	p.attr.Files = [3]int{int(null.Fd()), int(w.Fd()), int(w.Fd())}
	pid, err := Start(p.path, p.argv, &p.attr)
	w.Close()
	if err != nil {
		return "", 0, err
	}
	said, readErr := io.ReadAll(r)
	if readErr != nil {
		p.t.Error(readErr)
	}
	for {
		if _, err := unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
			return string(said), status, err
		}
	}
}

func TestItHasWhatItIsGiven(t *testing.T) {
	p := shell(t, `pwd; echo "$GREETING $0 $1"; echo error >&2; exit 7`)
	p.attr.Dir = "/usr"
	p.attr.Env = append(p.attr.Env, "GREETING=good day")
	p.argv = append(p.argv, "name", "an argument")
	output, status, err := p.run()
	if output != "/usr\ngood day name an argument\nerror\n" || status.ExitStatus() != 7 || err != nil {
		t.Errorf("%q, %v, %v", output, status, err)
	}
}

func TestItLeadsASessionOfItsOwn(t *testing.T) {
	for _, own := range []bool{true, false} {
		// pid (name) state ppid pgrp session
		p := shell(t, `read pid name state parent group session rest < /proc/self/stat; test $session = $$ && echo own || echo no`)
		p.attr.Session = own
		want := map[bool]string{true: "own\n", false: "no\n"}[own]
		if output, _, err := p.run(); output != want || err != nil {
			t.Errorf("session %v: %q, %v", own, output, err)
		}
	}
}

func TestItRunsAsItsUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root can start programs as others")
	}
	p := shell(t, `id -u; id -g; id -G; echo $(id -ru)`)
	p.attr.Credential = &Credential{UID: 65534, GID: 65533, Groups: []uint32{65533, 12}}
	if output, _, err := p.run(); output != "65534\n65533\n65533 12\n65534\n" || err != nil {
		t.Errorf("%q, %v", output, err)
	}
}

// Signals do to it what they do to a program that was started by anybody else: Go's handlers and those that this process has
// asked for are not its own.
func TestSignalsAreAsForAnyProgram(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGTERM, unix.SIGUSR1, unix.SIGPIPE)
	defer signal.Stop(caught)
	output, _, err := shell(t, "exec cat /proc/self/status").run()
	for _, set := range []string{"SigBlk", "SigIgn", "SigCgt"} {
		if !strings.Contains(output, "\n"+set+":\t0000000000000000\n") || err != nil {
			t.Errorf("%s of a new program is not empty: %s, %v", set, output, err)
		}
	}
	for _, end := range []unix.Signal{unix.SIGTERM, unix.SIGUSR1, unix.SIGPIPE} {
		if _, status, err := shell(t, "kill -"+strings.TrimPrefix(unix.SignalName(end), "SIG")+" $$; echo still here").run(); status.Signal() != end || err != nil {
			t.Errorf("%v ends it with %v, %v", end, status, err)
		}
	}
}

func TestItGetsNoOtherDescriptors(t *testing.T) {
	// Go opens all to be closed by an exec; a number that a shell does not use for itself.
	open, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 200)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(open)
	if output, _, err := shell(t, fmt.Sprintf("test -e /proc/$$/fd/%d && echo open", open)).run(); output != "" || err != nil {
		t.Errorf("%q, %v", output, err)
	}
}

func TestDescriptorsThatStayWhereTheyAre(t *testing.T) {
	for fd := range 3 {
		unix.CloseOnExec(fd)
		defer unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	}
	pid, err := Start("/bin/sh", []string{"sh", "-c", "test -e /proc/self/fd/0 -a -e /proc/self/fd/1 -a -e /proc/self/fd/2"}, &Attr{Files: [3]int{0, 1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
		t.Errorf("%v, %v", status, err)
	}
}

func TestAFailureNamesItsCall(t *testing.T) {
	text := t.TempDir() + "/text"
	if err := os.WriteFile(text, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, dir, call string
		errno           unix.Errno
	}{
		{"/no/such", "", "exec", unix.ENOENT},
		{"/", "", "exec", unix.EACCES},
		{text, "", "exec", unix.ENOEXEC},
		{"/bin/sh", "/no/such", Chdir, unix.ENOENT},
		{"/bin/sh", text, Chdir, unix.ENOTDIR},
		{"/bin/sh\x00", "", "exec", unix.EINVAL},
		{"/bin/sh", "/\x00", Chdir, unix.EINVAL},
	} {
		p := shell(t, "echo never")
		p.path, p.attr.Dir = c.path, c.dir
		var failed *Error
		if _, _, err := p.run(); !errors.As(err, &failed) || failed.Call != c.call || failed.Errno != c.errno || !errors.Is(err, c.errno) {
			t.Errorf("%q in %q: %v", c.path, c.dir, err)
		}
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("a failed child is left: %d, %v", pid, err)
	}
}

// Memory that a child shares must neither move nor be collected before its exec.
func TestManyAtOnce(t *testing.T) {
	var waiting sync.WaitGroup
	for range 8 {
		waiting.Go(func() {
			for range 25 {
				long := strings.Repeat("x", 10_000)
				p := shell(t, `printf %s "$LONG$1"`)
				p.attr.Env = append(p.attr.Env, "LONG="+long)
				p.argv = append(p.argv, "sh", long)
				if output, _, err := p.run(); output != long+long || err != nil {
					t.Errorf("%d bytes of output, %v", len(output), err)
				}
			}
		})
	}
	waiting.Wait()
}
