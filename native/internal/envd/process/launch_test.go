package process

import (
	"encoding/base64"
	"os"
	"strings"
	"testing"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
	"aenv/native/internal/envd/identity"
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
	home := "~"
	msg := shell("pwd")
	msg.Process.Cwd = &home
	if got := b.run(msg); got.stdout.String() != "/root\n" {
		t.Errorf("~: %q", got.stdout.String())
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
