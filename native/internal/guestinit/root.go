package guestinit

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The disks, in the order the host attaches them.
const (
	imageDisk    = "/dev/vda"
	writableDisk = "/dev/vdb"
	toolsDisk    = "/dev/vdc"
)

// Folders of the initrd.
const (
	imageDir    = "/image"
	writableDir = "/writable"
	upperDir    = writableDir + "/upper"
	workDir     = writableDir + "/work"
	newRoot     = "/root"
)

const (
	// diskWait is how long a disk may take to appear after its driver was loaded; it is there at once as a rule.
	diskWait     = 10 * time.Second
	diskWaitStep = 2 * time.Millisecond
)

// assembleRoot mounts the image with the writable disk over it on newRoot. It returns a descriptor of the disk, which nobody
// finds by a path any more.
func assembleRoot() (disk int, err error) {
	if err := mountDisk(mount{source: imageDisk, target: imageDir, fsType: "erofs", flags: unix.MS_RDONLY}); err != nil {
		return 0, err
	}
	// noatime: a read should not make a block differ from the snapshot. The options keep the kernel from going through the
	// whole disk in the background, and from writing zeroes where the host's sparse file has holes.
	writable := mount{source: writableDisk, target: writableDir, fsType: "ext4", flags: unix.MS_NOATIME, options: "noinit_itable,no_prefetch_block_bitmaps"}
	if err := mountDisk(writable); err != nil {
		return 0, err
	}
	if err := makeUpper(); err != nil {
		return 0, problem("prepare "+writableDisk, err)
	}
	if disk, err = unix.Open(writableDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return 0, problem("open "+writableDir, err)
	}
	// redirect_dir and metacopy: renaming a folder and changing a mode work as on any disk, and at no cost. xino: one
	// device number for all files, as `du -x` and others expect.
	options := "lowerdir=" + imageDir + ",upperdir=" + upperDir + ",workdir=" + workDir + ",redirect_dir=on,metacopy=on,xino=auto"
	if err := (mount{source: "overlay", target: newRoot, fsType: "overlay", flags: unix.MS_NOATIME, options: options}).mount(); err != nil {
		return 0, err
	}
	// The overlay holds both by itself.
	for _, dir := range []string{imageDir, writableDir} {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return 0, problem("detach "+dir, err)
		}
	}
	return disk, nil
}

// makeUpper makes the folder that the image's root shows as, with owner and mode of the image's. On the disk of an earlier life
// it is there, with those it got in that life.
func makeUpper() error {
	var root unix.Stat_t
	if err := unix.Stat(imageDir, &root); err != nil {
		return err
	}
	if err := os.Mkdir(workDir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Mkdir(upperDir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	if err := unix.Chown(upperDir, int(root.Uid), int(root.Gid)); err != nil {
		return err
	}
	return unix.Chmod(upperDir, root.Mode&0o7777)
}

// mountDisk waits for the disk and mounts it.
func mountDisk(m mount) error {
	for deadline := time.Now().Add(diskWait); ; time.Sleep(diskWaitStep) {
		_, err := os.Stat(m.source)
		if err == nil {
			return m.mount()
		}
		if !errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			return problem("find disk "+m.source, err)
		}
	}
}

// switchRoot makes newRoot the root of the machine and gives the memory of the initrd back.
func switchRoot() error {
	for _, dir := range []string{"/proc", "/dev"} {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return problem("detach "+dir, err)
		}
	}
	if err := os.Chdir(newRoot); err != nil {
		return problem("enter the new root", err)
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return problem("list the initrd", err)
	}
	for _, entry := range entries {
		if path := "/" + entry.Name(); path != newRoot {
			if err := os.RemoveAll(path); err != nil {
				return problem("free the initrd", err)
			}
		}
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return problem("move the new root to /", err)
	}
	if err := unix.Chroot("."); err != nil {
		return problem("make the new root the root", err)
	}
	return problem("enter the new root", os.Chdir("/"))
}
