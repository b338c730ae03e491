package process

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
	"aenv/native/internal/envd/identity"
	"aenv/native/internal/envd/logbook"
	"aenv/native/internal/envd/spawn"
	"aenv/native/internal/envd/users"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// busyRetries is how often a program is tried whose file another thread's fork still holds open for writing.
const busyRetries = 5

// plan is a checked Start: what to execute, as whom, where.
type plan struct {
	request *processpb.StartRequest
	user    users.User
	env     map[string]string
	path    string
	cwd     string
	// atHome: nobody asked for a folder, so it is the user's home if there is one.
	atHome bool
}

// newPlan checks a request. Nothing here touches the file system except the search for a bare command name: what is
// missing shows itself when the program is started, and is looked into only then.
func newPlan(request *processpb.StartRequest, user users.User, who identity.Identity) (*plan, error) {
	config := request.GetProcess()
	if config.GetCmd() == "" {
		return nil, invalid("process.cmd is empty: name the program to start")
	}
	p := &plan{request: request, user: user, env: environment(config.GetEnvs(), user, who, request.GetPty() != nil)}
	for name, value := range p.env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, invalid("environment variable %q: a name is not empty and has no '=', and neither it nor its value has a NUL", name)
		}
	}
	for _, arg := range append([]string{config.Cmd, config.GetCwd()}, config.GetArgs()...) {
		if strings.ContainsRune(arg, 0) {
			return nil, invalid("argument %q contains a NUL byte", arg)
		}
	}
	p.cwd, p.atHome = workdir(config.Cwd, user, who)
	var err error
	p.path, err = findCommand(config.Cmd, p.env["PATH"])
	return p, err
}

// environment starts from the user, not from the agent: nothing of the agent's own environment is passed on.
func environment(request map[string]string, user users.User, who identity.Identity, terminal bool) map[string]string {
	env := map[string]string{
		"PATH":        defaultPath,
		"HOME":        user.Home,
		"USER":        user.Name,
		"LOGNAME":     user.Name,
		"E2B_SANDBOX": "true",
	}
	if user.Shell != "" {
		env["SHELL"] = user.Shell
	}
	if who.SandboxID != "" {
		env["E2B_SANDBOX_ID"] = who.SandboxID
	}
	if who.TemplateID != "" {
		env["E2B_TEMPLATE_ID"] = who.TemplateID
	}
	if terminal {
		env["TERM"] = "xterm-256color"
		env["LANG"] = "C.UTF-8"
	}
	maps.Copy(env, who.EnvVars)
	maps.Copy(env, request)
	return env
}

// workdir is the folder asked for, else the template's, else the user's home.
func workdir(requested *string, user users.User, who identity.Identity) (dir string, atHome bool) {
	dir = who.DefaultWorkdir
	if requested != nil && *requested != "" {
		dir = *requested
	}
	switch {
	case dir == "":
		return user.Home, true
	case dir == "~" || strings.HasPrefix(dir, "~/"):
		return filepath.Join(user.Home, dir[1:]), false
	case !filepath.IsAbs(dir):
		return filepath.Join(user.Home, dir), false
	default:
		return dir, false
	}
}

// findCommand searches a bare name in searchPath; anything with a slash is taken as it is.
func findCommand(name, searchPath string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(searchPath) {
		candidate := filepath.Join(dir, name)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", connect.NewError(connect.CodeNotFound, fmt.Errorf("command '%s' not found in PATH (%s)", name, searchPath))
}

// launch starts the program and returns it with its output flowing; book is told what it does. The error has a Connect code.
func (s *Service) launch(p *plan, book *logbook.Book) (*process, error) {
	proc := &process{exited: make(chan struct{}), expired: make(chan struct{})}
	proc.hub = hub{patience: s.patience, crowded: s.table.trimHistories, history: history{total: &s.table.kept}}
	wires, err := wire(p, proc)
	if err != nil {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("cannot connect the process: %w", err))
	}
	attr := &spawn.Attr{
		Dir:      p.cwd,
		Env:      make([]string, 0, len(p.env)),
		Files:    wires.child,
		Session:  true,
		Terminal: proc.terminal != nil,
	}
	for name, value := range p.env {
		attr.Env = append(attr.Env, name+"="+value)
	}
	if os.Geteuid() == 0 {
		attr.Credential = &spawn.Credential{UID: p.user.UID, GID: p.user.GID, Groups: p.user.Groups}
	}
	argv := append([]string{p.request.Process.Cmd}, p.request.Process.Args...)
	proc.pid, err = s.execute(p.path, argv, attr, proc)
	if isHomeless(err, p) {
		p.cwd, attr.Dir = "/", "/"
		proc.pid, err = s.execute(p.path, argv, attr, proc)
	}
	wires.closeChild()
	if err != nil {
		wires.closeOwn()
		return nil, explainStart(err, p)
	}
	proc.info = &processpb.ProcessInfo{Config: p.request.Process, Pid: uint32(proc.pid), Tag: p.request.Tag}
	proc.transcript = begin(book, proc.pid, p)
	s.table.add(proc)
	return proc, nil
}

func (s *Service) execute(path string, argv []string, attr *spawn.Attr, proc *process) (int, error) {
	for retry := 0; ; retry++ {
		pid, err := s.reaper.Start(path, argv, attr, proc.collected)
		if !errors.Is(err, unix.ETXTBSY) || retry == busyRetries {
			return pid, err
		}
		time.Sleep(time.Millisecond << retry)
	}
}

// isHomeless tells whether a start failed because the user has no home: it is looked for only then, since most have one.
func isHomeless(err error, p *plan) bool {
	if !p.atHome || !spawn.Failed(err, spawn.Chdir) {
		return false
	}
	info, statErr := os.Stat(p.cwd)
	return statErr != nil || !info.IsDir()
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
