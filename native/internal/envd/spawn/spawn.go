// Package spawn starts programs with as few system calls as there can be.
//
// A call of the kernel costs a sandbox's agent 4 to 60 microseconds, and Go's own fork and exec makes some eighty: the child
// takes back Go's handlers signal by signal, and reports through a pipe. Here the kernel is asked to do the first
// (CLONE_CLEAR_SIGHAND, Linux 5.5), and the child, which shares this process's memory until its exec, reports there.
//
// What a child does before its exec is a list of system calls, carried out by a few lines of assembly that use no stack: no
// Go runs in it.
package spawn

import (
	"errors"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Attr is how a program is started.
type Attr struct {
	// Dir is its working folder, to be entered by the user it runs as; empty is this process's.
	Dir string
	Env []string
	// Files become its descriptors 0, 1 and 2. None is one that an earlier of them has become.
	Files [3]int
	// Session: it leads a new one. Terminal: descriptor 0 becomes the terminal of that.
	Session, Terminal bool
	// Credential is whom it runs as; nil: as this process does.
	Credential *Credential
}

// Credential is a user with its groups.
type Credential struct {
	UID, GID uint32
	Groups   []uint32
}

// Chdir is the call of an Error of the working folder.
const Chdir = "chdir"

// Error says which system call failed.
type Error struct {
	Call  string
	Errno syscall.Errno
}

func (e *Error) Error() string { return e.Call + ": " + e.Errno.Error() }

func (e *Error) Unwrap() error { return e.Errno }

// Failed tells whether err is of this system call.
func Failed(err error, call string) bool {
	var failed *Error
	return errors.As(err, &failed) && failed.Call == call
}

// Start starts a program and returns when it runs: everything else it has, its limits too, is this process's. (Go raises the soft
// limit of open files to the hard one, and takes that back in a child of its own; in a machine both are the same.) The error is
// an *Error; nothing is left to wait for then.
func Start(path string, argv []string, attr *Attr) (pid int, err error) {
	j, err := newJob(path, argv, attr)
	if err != nil {
		return 0, err
	}
	// Descriptors that others have just opened, and not yet told to be closed by an exec, do not go along.
	syscall.ForkLock.Lock()
	child, errno := run(j)
	syscall.ForkLock.Unlock()
	runtime.KeepAlive(j)
	switch {
	case errno != 0:
		return 0, &Error{"clone", syscall.Errno(errno)}
	case j.errno != 0:
		collect(int(child))
		return 0, &Error{j.names[j.done], syscall.Errno(j.errno)}
	}
	return int(child), nil
}

// collect waits for the end of a child that could not become its program.
func collect(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
			return
		}
	}
}

// maxCalls: session, terminal, groups, group, user, folder, three descriptors, exec.
const maxCalls = 10

// job is what a child does. Its first four fields are the assembly's.
type job struct {
	clone cloneArgs
	calls [maxCalls]call
	// done counts the calls that did not fail; errno is that of one that did, the last.
	done, errno uintptr

	count int
	names [maxCalls]string

	path, dir *byte
	argv, env []*byte
	groups    []uint32
}

type call struct{ number, arg0, arg1, arg2 uintptr }

// cloneArgs is the kernel's struct clone_args as it was first.
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
}

// run clones this process and has the child carry out the calls, the last of them an exec. This thread stands still until that
// is done, or the child has ended; a child that is sent SIGSTOP in between, which takes root, holds it up, as it does in Go's own. What is given to assembly lies in the heap, with all that it leads to, and stays where it is.
func run(j *job) (pid, errno uintptr)

func newJob(path string, argv []string, attr *Attr) (*job, error) {
	j := &job{clone: cloneArgs{
		flags:      unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_CLEAR_SIGHAND,
		exitSignal: uint64(unix.SIGCHLD),
	}}
	if attr.Session {
		j.add("setsid", unix.SYS_SETSID, 0, 0, 0)
	}
	if attr.Terminal {
		j.add("set terminal", unix.SYS_IOCTL, uintptr(attr.Files[0]), unix.TIOCSCTTY, 0)
	}
	if who := attr.Credential; who != nil {
		j.groups = append([]uint32{}, who.Groups...)
		j.add("setgroups", unix.SYS_SETGROUPS, uintptr(len(j.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(j.groups))), 0)
		j.add("setgid", unix.SYS_SETGID, uintptr(who.GID), 0, 0)
		j.add("setuid", unix.SYS_SETUID, uintptr(who.UID), 0, 0)
	}
	var err error
	if attr.Dir != "" {
		if j.dir, err = syscall.BytePtrFromString(attr.Dir); err != nil {
			return nil, &Error{Chdir, unix.EINVAL}
		}
		j.add(Chdir, unix.SYS_CHDIR, uintptr(unsafe.Pointer(j.dir)), 0, 0)
	}
	for to, from := range attr.Files {
		if from == to {
			// Nothing would be copied, and it would be closed.
			j.add("fcntl", unix.SYS_FCNTL, uintptr(from), unix.F_SETFD, 0)
		} else {
			j.add("dup3", unix.SYS_DUP3, uintptr(from), uintptr(to), 0)
		}
	}
	return j, j.exec(path, argv, attr.Env)
}

func (j *job) exec(path string, argv, env []string) (err error) {
	if j.path, err = syscall.BytePtrFromString(path); err == nil {
		if j.argv, err = syscall.SlicePtrFromStrings(argv); err == nil {
			j.env, err = syscall.SlicePtrFromStrings(env)
		}
	}
	if err != nil {
		return &Error{"exec", unix.EINVAL}
	}
	j.add("exec", unix.SYS_EXECVE, uintptr(unsafe.Pointer(j.path)),
		uintptr(unsafe.Pointer(unsafe.SliceData(j.argv))), uintptr(unsafe.Pointer(unsafe.SliceData(j.env))))
	return nil
}

func (j *job) add(name string, number, arg0, arg1, arg2 uintptr) {
	j.calls[j.count] = call{number, arg0, arg1, arg2}
	j.names[j.count] = name
	j.count++
}
