package process

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openTerminal makes a pseudo terminal of the given size that belongs to uid and gid. The controlling side is
// non-blocking, the process's side is a plain descriptor. The error names the step that failed.
func openTerminal(size unix.Winsize, uid, gid int) (controller *os.File, side int, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	side, err = openSide(fd, size, uid, gid)
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), side, nil
}

func openSide(controller int, size unix.Winsize, uid, gid int) (int, error) {
	if err := unix.IoctlSetPointerInt(controller, unix.TIOCSPTLCK, 0); err != nil {
		return -1, fmt.Errorf("unlock terminal: %w", err)
	}
	number, err := unix.IoctlGetUint32(controller, unix.TIOCGPTN)
	if err != nil {
		return -1, fmt.Errorf("number of terminal: %w", err)
	}
	name := fmt.Sprintf("/dev/pts/%d", number)
	side, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	if err := unix.IoctlSetWinsize(side, unix.TIOCSWINSZ, &size); err != nil {
		unix.Close(side)
		return -1, fmt.Errorf("size %s: %w", name, err)
	}
	// Programs that open their terminal by name need to own it; where devpts cannot, they still have descriptors.
	_ = unix.Fchown(side, uid, gid)
	return side, nil
}

// resizeTerminal sets the size that the process sees.
func resizeTerminal(controller *os.File, size unix.Winsize) error {
	return onDescriptor(controller, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &size) })
}

// onDescriptor has act call the kernel about an open file that others use meanwhile.
func onDescriptor(file *os.File, act func(fd int) error) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var actErr error
	if err := conn.Control(func(fd uintptr) { actErr = act(int(fd)) }); err != nil {
		return err
	}
	return actErr
}
