package process

import (
	"bytes"
	"encoding/base64"
	"os"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/spawn"
)

// PROC-14: a working directory that cannot be used is named.
func TestPROC14Workdir(t *testing.T) {
	b := newBench(t)
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	private := t.TempDir()
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	nobody := "Basic " + base64.StdEncoding.EncodeToString([]byte("nobody:"))
	for _, c := range []struct{ cwd, user, want string }{
		{"/no/such", "", "cwd '/no/such' does not exist"},
		{file, "", "cwd '" + file + "' is not a directory"},
		{private, nobody, "cwd '" + private + "' may not be entered by user 'nobody'"},
	} {
		msg := shell("pwd")
		msg.Process.Cwd = &c.cwd
		headers := []string{}
		if c.user != "" {
			headers = []string{"Authorization", c.user}
		}
		err := b.failure(msg, headers...)
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.cwd, err)
		}
	}
	if got := b.run(shell("pwd")); got.stdout.String() != "/tmp\n" {
		t.Errorf("default workdir: %q", got.stdout.String())
	}
	b.who.Accept("", "", identity.Identity{DefaultUser: "root", DefaultWorkdir: "/no/default"})
	if err := b.failure(shell("pwd")); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "cwd '/no/default' does not exist") {
		t.Errorf("missing default workdir: %v", err)
	}
	gone := t.TempDir() + "/gone"
	if err := os.Mkdir(gone, 0o755); err != nil {
		t.Fatal(err)
	}
	msg := shell("rmdir ../gone; echo still; exit 3")
	msg.Process.Cwd = &gone
	if got := b.run(msg); got.stdout.String() != "still\n" || got.end.GetExitCode() != 3 {
		t.Errorf("a workdir that goes: %q %v", got.stdout.String(), got.end)
	}
	home := "~"
	msg = shell("pwd")
	msg.Process.Cwd = &home
	if got := b.run(msg); got.stdout.String() != "/root\n" {
		t.Errorf("~: %q", got.stdout.String())
	}
	b.who.Accept("", "", identity.Identity{DefaultUser: "root"})
	if got := b.run(shell("pwd")); got.stdout.String() != "/root\n" {
		t.Errorf("no workdir: %q", got.stdout.String())
	}
	if got := b.run(shell("pwd"), "Authorization", nobody); got.stdout.String() != "/\n" {
		t.Errorf("no workdir and no home: %q", got.stdout.String())
	}
}

// What an image lacks is named: a shell, an interpreter, another C library's loader.
func TestImagesWithoutWhatAProgramNeeds(t *testing.T) {
	b := newBench(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"script": "#! /no/such/python3 -u\nprint()\n", "windows": "#!/bin/sh\r\necho\r\n", "empty": "", "text": "no program\n"} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	foreignProgram(t, dir+"/foreign", "/lib/ld-musl-none.so.1")
	for _, c := range []struct {
		cmd  string
		code connect.Code
		want string
	}{
		{"/no/such/bin/bash", connect.CodeNotFound, "the image has no /no/such/bin/bash: commands and terminals of the E2B SDKs are run by it"},
		{dir + "/script", connect.CodeNotFound, `the image has no "/no/such/python3", which its first line names`},
		{dir + "/windows", connect.CodeNotFound, `the image has no "/bin/sh\r"`},
		{dir + "/foreign", connect.CodeNotFound, `the image has no "/lib/ld-musl-none.so.1", the loader it was linked for`},
		{dir + "/empty", connect.CodeInvalidArgument, "has no #! line"},
		{dir + "/text", connect.CodeInvalidArgument, "has no #! line"},
		{dir, connect.CodePermissionDenied, "may not execute"},
		{"no-such-command", connect.CodeNotFound, "command 'no-such-command' not found in PATH (" + defaultPath + ")"},
	} {
		for _, pty := range []*processpb.PTY{nil, {}} {
			err := b.failure(&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: c.cmd}, Pty: pty})
			if connect.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.cmd, err)
			}
		}
	}
}

// foreignProgram copies a dynamically linked program of this machine and has it name another loader.
func foreignProgram(t *testing.T, path, loader string) {
	t.Helper()
	program, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	own := loaderOf("/bin/sh")
	if len(own) < len(loader) {
		t.Fatalf("the loader of /bin/sh is %q", own)
	}
	at := bytes.Index(program, []byte(own+"\x00"))
	copy(program[at:], loader+strings.Repeat("\x00", len(own)-len(loader)))
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestUnknownCommandAndUser(t *testing.T) {
	b := newBench(t)
	for _, cmd := range []string{"no-such-command", "/no/such/command"} {
		err := b.failure(&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: cmd}})
		if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), cmd) {
			t.Errorf("%s: %v", cmd, err)
		}
	}
	err := b.failure(shell(":"), "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("ghost:")))
	if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "invalid username: 'ghost'") {
		t.Errorf("unknown user: %v", err)
	}
}

// PROC-16: values are exact, not in any argv; bad names are refused; what is too big says so.
func TestPROC16Environment(t *testing.T) {
	t.Setenv("AENV_AGENT_SECRET", "x")
	b := newBench(t)
	values := map[string]string{
		"NL": "a\nb", "QUOTES": `'"` + "`", "EQ": "a=b=", "DOLLAR": "$HOME", "EMPTY": "", "BIG": strings.Repeat("x", 100_000),
	}
	b.who.Accept("", "", identity.Identity{EnvVars: map[string]string{"GLOBAL": "g", "NL": "global"}, SandboxID: "iabc", TemplateID: "tpl", DefaultUser: "root"})
	msg := &processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "env", Args: []string{"-0"}, Envs: values}}
	env := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSuffix(b.run(msg).stdout.String(), "\x00"), "\x00") {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	values["GLOBAL"], values["E2B_SANDBOX"], values["E2B_SANDBOX_ID"], values["E2B_TEMPLATE_ID"] = "g", "true", "iabc", "tpl"
	values["HOME"], values["USER"], values["LOGNAME"], values["PATH"] = "/root", "root", "root", defaultPath
	for name, want := range values {
		if env[name] != want {
			t.Errorf("%s = %.40q", name, env[name])
		}
	}
	if _, leaked := env["AENV_AGENT_SECRET"]; leaked {
		t.Error("the agent's environment leaks")
	}
	for _, bad := range []string{"", "A=B"} {
		if err := b.failure(&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "env", Envs: map[string]string{bad: "x"}}}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("name %q: %v", bad, err)
		}
	}
	err := b.failure(&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: "env", Envs: map[string]string{"HUGE": strings.Repeat("x", 4<<20)}}})
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "larger than the kernel allows") {
		t.Errorf("huge: %v", err)
	}
}

// gVisor's exec has one error for arguments that are too large and for a path that is too long.
func TestTooLargeIsNotTooLong(t *testing.T) {
	for _, c := range []struct {
		call, path string
		errno      syscall.Errno
		code       connect.Code
		want       string
	}{
		{"exec", "/bin/sh", unix.E2BIG, connect.CodeInvalidArgument, "larger than the kernel allows"},
		{"exec", "/bin/sh", unix.ENAMETOOLONG, connect.CodeInvalidArgument, "larger than the kernel allows"},
		{"exec", "/bin/" + strings.Repeat("x", nameMax+1), unix.ENAMETOOLONG, connect.CodeInternal, "file name too long"},
		{"exec", strings.Repeat("/bin", unix.PathMax/4), unix.ENAMETOOLONG, connect.CodeInternal, "file name too long"},
		{spawn.Chdir, "/bin/sh", unix.ENAMETOOLONG, connect.CodeInvalidArgument, "cwd"},
	} {
		long := &plan{path: c.path, cwd: "/" + strings.Repeat("x", nameMax+1), request: shell("")}
		err := explainStart(&spawn.Error{Call: c.call, Errno: c.errno}, long)
		if connect.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %.20s…, %v: %v", c.call, c.path, c.errno, err)
		}
	}
}

// PROC-19: the user's groups and home are the process's.
func TestPROC19UserOfTheProcess(t *testing.T) {
	b := newBench(t)
	for user, want := range map[string]string{"nobody": "65534 65534 65534 nobody", "1234:4321": "1234 4321 4321 1234", "root": "0 0 0 root"} {
		got := b.run(shell(`echo "$(id -u) $(id -g) $(id -G) $USER"`), "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
		if strings.TrimSpace(got.stdout.String()) != want {
			t.Errorf("%s: %q, %v", user, got.stdout.String(), got.end)
		}
	}
}
