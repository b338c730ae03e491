package guestinit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// inert is for file systems that hold no programs and no devices.
	inert = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV

	agentDir = "/.aenv"
)

// mount is one file system to be mounted.
type mount struct {
	source, target, fsType string
	flags                  uintptr
	options                string
}

// mount makes the folder it is to be on, if need be, and mounts.
func (m mount) mount() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return problem("make a folder for "+m.String(), err)
	}
	return problem("mount "+m.String(), unix.Mount(m.source, m.target, m.fsType, m.flags, m.options))
}

func (m mount) String() string { return fmt.Sprintf("%s (%s) on %s", m.source, m.fsType, m.target) }

// mountAll mounts in the image's root what belongs in any. /tmp and /run stay on the disk, because a tmpfs is memory that
// no kill gives back; but an init expects /run to be empty at boot, and would cover it later, the agent's files there
// included.
func mountAll(config Config) error {
	shm := fmt.Sprintf("mode=1777,size=%d", config.ShmBytes)
	mounts := []mount{
		{source: "proc", target: "/proc", fsType: "proc", flags: inert},
		{source: "sysfs", target: "/sys", fsType: "sysfs", flags: inert},
		{source: "cgroup2", target: "/sys/fs/cgroup", fsType: "cgroup2", flags: inert},
		{source: "devtmpfs", target: "/dev", fsType: "devtmpfs", flags: unix.MS_NOSUID},
		{source: "devpts", target: "/dev/pts", fsType: "devpts", flags: unix.MS_NOSUID | unix.MS_NOEXEC, options: "gid=5,mode=620,ptmxmode=666"},
		{source: "shm", target: "/dev/shm", fsType: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, options: shm},
	}
	if len(config.Init) > 0 {
		mounts = append(mounts, mount{source: "run", target: "/run", fsType: "tmpfs", flags: unix.MS_NOSUID | unix.MS_NODEV, options: "mode=755"})
	}
	for _, m := range mounts {
		if err := m.mount(); err != nil {
			return err
		}
	}
	if err := prepareDevices(); err != nil {
		return err
	}
	return mountDisk(mount{source: toolsDisk, target: agentDir, fsType: "erofs", flags: unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV})
}

// prepareDevices does in /dev what udev would do.
func prepareDevices() error {
	for name, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+target, "/dev/"+name); err != nil {
			return problem("link /dev/"+name, err)
		}
	}
	// Their drivers check themselves what a user may do; a kernel may lack them.
	for _, path := range []string{"/dev/fuse", "/dev/net/tun"} {
		if err := os.Chmod(path, 0o666); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return problem("open "+path+" to everyone", err)
		}
	}
	return nil
}
