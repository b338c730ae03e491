package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stat is what the keeper needs of /proc/PID/stat. startTicks (field 22) together with the pid names a process for good.
type stat struct {
	parent     int
	startTicks uint64
}

func readStat(pid int) (stat, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	raw, err := os.ReadFile(path)
	if err != nil {
		return stat{}, err
	}
	// The command name (field 2) is in parentheses and may hold spaces and parentheses itself.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("%s: %d fields after the command name, want at least 20", path, len(fields))
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return stat{}, fmt.Errorf("%s: parent: %w", path, err)
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("%s: start time: %w", path, err)
	}
	return stat{parent: parent, startTicks: ticks}, nil
}

// childInfo is the kernel's siginfo_t as waitid fills it on 64-bit Linux.
type childInfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
	_                     [100]byte
}

const childExited = 1 // CLD_EXITED: status is an exit code; otherwise it is a signal number.

// peekExited names one child that has ended but is not reaped yet, so that its /proc entry can still be read.
func peekExited() (pid int, code int, signal int, found bool) {
	var info childInfo
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || info.pid == 0 {
			return 0, 0, 0, false
		}
		if info.code == childExited {
			return int(info.pid), int(info.status), 0, true
		}
		return int(info.pid), -1, int(info.status), true
	}
}

func reap(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err != syscall.EINTR {
			return
		}
	}
}
