package guestinit

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// KeepAgentCommand is the argument with which this program starts itself once more, beside an image's own init.
const KeepAgentCommand = "keep-agent"

const (
	agentPath   = agentDir + "/envd"
	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// keptDisk is the descriptor of the disk in the agent's keeper and in the agent beside an image's own init.
const keptDisk = 3

// agentEnv is the agent's environment: that under every driver, and which descriptor is the disk, which it can freeze.
func agentEnv(disk int) []string {
	return []string{defaultPath, "HOME=/root", "LANG=C.UTF-8", fmt.Sprintf("AENV_DISK_FD=%d", disk)}
}

// becomeAgent executes the agent as pid 1. The kernel's OOM killer passes pid 1 over.
func becomeAgent(disk int) error {
	if _, err := unix.Setsid(); err != nil {
		return problem("start a session", err)
	}
	// What programs write to /proc/1/fd/1 must not end in the host's log of the console.
	if err := redirect("/dev/null"); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(disk), unix.F_SETFD, 0); err != nil {
		return problem("hand over the disk", err)
	}
	return problem("execute the agent "+agentPath, unix.Exec(agentPath, []string{agentPath}, agentEnv(disk)))
}

// becomeInit starts the agent and executes the image's init as pid 1.
func becomeInit(argv []string, disk int) error {
	// The kernel's own environment for init, and a PATH.
	env := []string{defaultPath, "HOME=/", "TERM=linux"}
	// A kernel told of no console has none to give.
	if redirect("/dev/console") != nil {
		if err := redirect("/dev/null"); err != nil {
			return err
		}
	}
	if err := unix.Access(argv[0], unix.X_OK); err != nil {
		return problem("find the image's init "+argv[0], err)
	}
	files := []uintptr{0, 1, 2, keptDisk: uintptr(disk)}
	attr := &syscall.ProcAttr{Dir: "/", Files: files, Sys: &syscall.SysProcAttr{Setsid: true}}
	// The file of this program is deleted, but lives as long as it runs.
	if _, err := syscall.ForkExec("/proc/self/exe", []string{"aenv-guestinit", KeepAgentCommand}, attr); err != nil {
		return problem("start the agent's keeper", err)
	}
	return problem("execute the image's init "+argv[0], unix.Exec(argv[0], argv, env))
}

// KeepAgent runs the agent, and ends the machine when the agent has ended: nobody could reach it any more. It does not
// return.
func KeepAgent() {
	fail(keepAgent())
}

func keepAgent() error {
	// An init that shuts down asks everyone to go; the agent stays too, and both end with the machine.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	// As pid 1 the agent would be passed over by the kernel's OOM killer; here it has to be told. The agent gives what it
	// starts an ordinary score.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		return problem("protect the agent from the OOM killer", err)
	}
	if err := redirect("/dev/null"); err != nil {
		return err
	}
	files := []uintptr{0, 1, 2, keptDisk: keptDisk}
	attr := &syscall.ProcAttr{Dir: "/", Env: agentEnv(keptDisk), Files: files, Sys: &syscall.SysProcAttr{Setsid: true}}
	pid, err := syscall.ForkExec(agentPath, []string{agentPath, "-machine"}, attr)
	if err != nil {
		return problem("execute the agent "+agentPath, err)
	}
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if status.Signaled() {
		return fmt.Errorf("the agent was killed by signal %d", status.Signal())
	}
	return fmt.Errorf("the agent exited with code %d", status.ExitStatus())
}

// redirect makes a device the standard input, output and error.
func redirect(device string) error {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return problem("open "+device, err)
	}
	defer unix.Close(fd)
	for standard := range 3 {
		if err := unix.Dup3(fd, standard, 0); err != nil {
			return problem("redirect to "+device, err)
		}
	}
	return nil
}
