package guestinit

import "syscall"

// limit sets both values of a limit for this process and all that it becomes and starts. It is the syscall package's
// because Go, which raises the number of open files for itself, would put the old one back at the next exec otherwise.
func limit(resource int, value uint64) error {
	return syscall.Setrlimit(resource, &syscall.Rlimit{Cur: value, Max: value})
}
