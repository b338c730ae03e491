// Package mount shows EROFS files as read-only directories, by the kernel.
package mount

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"aenv/native/internal/blobd/fault"
)

// flags: devices in an image are names only, on the host. Set-user-id programs must work, because sandboxes see the
// image through this mount.
const flags = unix.MS_RDONLY | unix.MS_NODEV

// Attach mounts the image file at dir, which exists. Linux 6.12 and newer mount the file itself; older kernels get a loop
// device that disappears with the mount. fault.Unsupported when the kernel has no EROFS.
func Attach(file, dir string) error {
	err := unix.Mount(file, dir, "erofs", flags, "")
	if errors.Is(err, unix.ENOTBLK) {
		err = attachLoop(file, dir)
	}
	if errors.Is(err, unix.ENODEV) {
		return fault.Wrap(fault.Unsupported, err, "this kernel has no EROFS (try `modprobe erofs`); cannot mount %s", file)
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", file, dir, err)
	}
	return nil
}

// Detach unmounts dir. busy means that somebody still uses it; nothing happened then.
func Detach(dir string) (busy bool, err error) {
	err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	switch {
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("unmount %s: %w", dir, err)
	}
	return false, nil
}

const loopAttempts = 16

// attachLoop mounts by way of a loop device. Another process may take the free one first: then it tries the next.
func attachLoop(file, dir string) error {
	image, err := os.Open(file)
	if err != nil {
		return err
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return fault.Wrap(fault.Unsupported, err, "this kernel mounts no plain files and has no loop devices (try `modprobe loop`)")
	}
	defer control.Close()
	for range loopAttempts {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		err = mountLoop(image, "/dev/loop"+strconv.Itoa(number), dir)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return fault.New(fault.Unavailable, "no free loop device after %d attempts", loopAttempts)
}

func mountLoop(image *os.File, device, dir string) error {
	loop, err := os.OpenFile(device, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	// With autoclear the device goes when its last user does: the mount, or this file if the mount fails.
	defer loop.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR}}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], image.Name())
	if err := unix.IoctlLoopConfigure(int(loop.Fd()), &config); err != nil {
		return os.NewSyscallError("LOOP_CONFIGURE", err)
	}
	return unix.Mount(device, dir, "erofs", flags, "")
}

// Is tells whether an EROFS is mounted at dir.
func Is(dir string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(dir, &stat) == nil && uint32(stat.Type) == unix.EROFS_SUPER_MAGIC_V1
}

// Points lists the EROFS mounts of this mount namespace whose directory lies in parent, by directory.
func Points(parent string) (map[string]bool, error) {
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer table.Close()
	points := map[string]bool{}
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, found := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if !found || len(fields) < 5 || !strings.HasPrefix(after, "erofs ") {
			continue
		}
		if dir := unescape(fields[4]); strings.HasPrefix(dir, parent+"/") {
			points[dir] = true
		}
	}
	return points, lines.Err()
}

// unescape undoes the octal escapes of mountinfo (blank, tab, newline, backslash).
func unescape(field string) string {
	var out strings.Builder
	for i := 0; i < len(field); i++ {
		if field[i] == '\\' && i+3 < len(field) {
			if code, err := strconv.ParseUint(field[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(field[i])
	}
	return out.String()
}
