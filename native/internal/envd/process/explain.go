package process

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/spawn"
	"aenv/native/internal/envd/users"
)

// nameMax is the longest name in a folder, in bytes.
const nameMax = 255

// explainStart turns the error of a failed start, which does not say what failed, into one that does.
func explainStart(err error, p *plan) error {
	cmd := p.request.Process.Cmd
	switch {
	case isTooLarge(err, p.path):
		return invalid("the arguments and environment of '%s' are larger than the kernel allows", cmd)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("cannot fork: the sandbox is out of processes or memory: %w", err))
	case errors.Is(err, unix.ENOEXEC):
		return invalid("'%s' is not a program of this machine, and has no #! line", cmd)
	}
	if spawn.Failed(err, spawn.Chdir) {
		if problem := explainWorkdir(p); problem != nil {
			return problem
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return connect.NewError(connect.CodeNotFound, explainMissing(p.path))
	case errors.Is(err, unix.EACCES):
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("user '%s' may not execute '%s'", p.user.Name, cmd))
	case errors.Is(err, unix.EPERM):
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("the agent may not start a process as user '%s'", p.user.Name))
	default:
		return connect.NewError(connect.CodeInternal, fmt.Errorf("start '%s': %w", cmd, err))
	}
}

// isTooLarge tells whether a start failed because of the size of the arguments and environment: Linux says E2BIG, gVisor's exec
// what it says of a long path too.
func isTooLarge(err error, path string) bool {
	if errors.Is(err, unix.ENAMETOOLONG) && !spawn.Failed(err, spawn.Chdir) {
		return len(path) < unix.PathMax && !slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool { return len(name) > nameMax })
	}
	return errors.Is(err, unix.E2BIG)
}

func explainWorkdir(p *plan) error {
	info, err := os.Stat(p.cwd)
	switch {
	case err != nil && errors.Is(err, os.ErrNotExist):
		return invalid("cwd '%s' does not exist", p.cwd)
	case err != nil:
		return invalid("cwd '%s' cannot be used: %v", p.cwd, err)
	case !info.IsDir():
		return invalid("cwd '%s' is not a directory", p.cwd)
	case !mayEnter(p.cwd, p.user):
		return invalid("cwd '%s' may not be entered by user '%s'", p.cwd, p.user.Name)
	default:
		return nil
	}
}

// mayEnter tells whether the permission bits let user search every folder on the way to dir.
func mayEnter(dir string, user users.User) bool {
	if user.UID == 0 {
		return true
	}
	for {
		var stat unix.Stat_t
		if unix.Stat(dir, &stat) != nil {
			return false
		}
		bit := uint32(0o001)
		if stat.Uid == user.UID {
			bit = 0o100
		} else if stat.Gid == user.GID || slices.Contains(user.Groups, stat.Gid) {
			bit = 0o010
		}
		if stat.Mode&bit == 0 {
			return false
		}
		if dir == "/" || dir == "." {
			return true
		}
		dir = filepath.Dir(dir)
	}
}

// shells are what clients run commands and terminals by, so that a user may never have asked for them.
var shells = []string{"bash", "sh"}

// explainMissing says what a program that could not be found lacks: itself, or what it needs to run.
func explainMissing(program string) error {
	if _, err := os.Stat(program); err != nil {
		if filepath.IsAbs(program) && slices.Contains(shells, path.Base(program)) {
			return fmt.Errorf("the image has no %s: commands and terminals of the E2B SDKs are run by it; use an image with %s, "+
				"or start a program of the image without a shell", program, path.Base(program))
		}
		return fmt.Errorf("command '%s' not found", program)
	}
	if interpreter := scriptInterpreter(program); interpreter != "" {
		return fmt.Errorf("'%s' cannot run: the image has no %q, which its first line names", program, interpreter)
	}
	if loader := loaderOf(program); loader != "" {
		return fmt.Errorf("'%s' cannot run: the image has no %q, the loader it was linked for (another C library)", program, loader)
	}
	return fmt.Errorf("'%s' cannot run: something it needs is not there", program)
}

// scriptInterpreter is the program of a #! line, "" where there is none.
func scriptInterpreter(program string) string {
	file, err := os.Open(program)
	if err != nil {
		return ""
	}
	defer file.Close()
	head := make([]byte, 256)
	n, _ := io.ReadFull(file, head)
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	line, isScript := bytes.CutPrefix(line, []byte("#!"))
	if !isScript {
		return ""
	}
	// Only blanks and tabs divide: a line end of another system is part of the name, and shown.
	words := strings.FieldsFunc(string(line), func(r rune) bool { return r == ' ' || r == '\t' })
	return append(words, "")[0]
}

// loaderOf is the dynamic loader that a program names, "" where there is none.
func loaderOf(program string) string {
	file, err := elf.Open(program)
	if err != nil {
		return ""
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP && segment.Filesz <= unix.PathMax {
			name := make([]byte, segment.Filesz)
			if _, err := segment.ReadAt(name, 0); err == nil {
				return strings.TrimRight(string(name), "\x00")
			}
		}
	}
	return ""
}
