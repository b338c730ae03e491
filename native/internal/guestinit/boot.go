// Package guestinit boots a virtual machine: from the moment the kernel has started /init of the initrd to the moment the
// agent, or the image's own init, runs in the image.
//
// The machine has three disks: the image (EROFS, read-only), a writable ext4 without content, and the tools (EROFS with
// the agent, read-only). What else there is to know stands on the kernel's command line (Config).
package guestinit

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Boot turns the initrd's machine into the image's. It does not return: another program takes its place as pid 1, or,
// when something fails, a line on the console says what, and the machine ends.
func Boot() {
	fail(boot())
}

func boot() error {
	config, err := enterInitrd()
	if err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	disk, err := assembleRoot()
	if err != nil {
		return err
	}
	if err := switchRoot(); err != nil {
		return err
	}
	if err := mountAll(config); err != nil {
		return err
	}
	if err := configureKernel(config); err != nil {
		return err
	}
	if err := startNetwork(config.Network); err != nil {
		return err
	}
	if len(config.Init) > 0 {
		return becomeInit(config.Init, disk)
	}
	return becomeAgent(disk)
}

// enterInitrd mounts what is needed to get out of the initrd again, and reads the configuration.
func enterInitrd() (Config, error) {
	for _, m := range []mount{
		{source: "proc", target: "/proc", fsType: "proc"},
		{source: "devtmpfs", target: "/dev", fsType: "devtmpfs"},
	} {
		if err := m.mount(); err != nil {
			return Config{}, err
		}
	}
	commandLine, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return Config{}, problem("read the kernel's command line", err)
	}
	config, err := readConfig(string(commandLine))
	return config, problem("read the kernel's command line", err)
}

// configureKernel sets the limits of processes, which everything inherits from pid 1, and the kernel's own settings.
func configureKernel(config Config) error {
	if err := unix.Sethostname([]byte(config.Hostname)); err != nil {
		return problem("set the host name to "+config.Hostname, err)
	}
	// A machine whose kernel has panicked is of no use to anyone: it ends, and the host sees that it did.
	if err := os.WriteFile("/proc/sys/kernel/panic", []byte("1"), 0); err != nil {
		return problem("have the machine end after a kernel panic", err)
	}
	if err := limit(unix.RLIMIT_NOFILE, config.OpenFiles); err != nil {
		return problem(fmt.Sprintf("limit open files to %d", config.OpenFiles), err)
	}
	return problem(fmt.Sprintf("limit tasks to %d", config.MaxTasks), limit(unix.RLIMIT_NPROC, config.MaxTasks))
}

// problem says what did not work; nil stays nil.
func problem(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// fail says on the console why the machine cannot go on, and ends it. A reboot is an end: the host does not start the
// machine again.
func fail(err error) {
	line := fmt.Sprintf("aenv guestinit: %v\n", err)
	writeDrained("/dev/console", line)
	writeDrained("/dev/kmsg", line)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	// Pid 1 that exits is a kernel panic, which ends the machine too.
	os.Exit(1)
}

// writeDrained writes and waits until the bytes have left: a serial line sends long after the write has returned.
func writeDrained(path, text string) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_, _ = unix.Write(fd, []byte(text))
	const drain = 1
	_ = unix.IoctlSetInt(fd, unix.TCSBRK, drain)
	_ = unix.Close(fd)
}
