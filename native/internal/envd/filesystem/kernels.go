package filesystem

import "golang.org/x/sys/unix"

// IsKernels tells of a file system that its files are not stored anywhere: they show the kernel, and links among them lead to
// wherever a process is.
func IsKernels(system *unix.Statfs_t) bool {
	return system.Type == unix.PROC_SUPER_MAGIC || system.Type == unix.SYSFS_MAGIC
}
