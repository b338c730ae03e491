// Package oneway carries what one connection says to another, as it comes, at no more than a goroutine for one that is idle.
package oneway

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// Lend gives a buffer for as long as something is in it.
type Lend func() (buffer []byte, giveBack func())

// Copy copies until from has ended, which gives nil. A buffer is lent only when there is something to read.
func Copy(to io.Writer, from syscall.Conn, lend Lend) error {
	ready, err := from.SyscallConn()
	if err != nil {
		return err
	}
	for {
		ended, err := copyOnce(to, ready, lend)
		if ended || err != nil {
			return err
		}
	}
}

// copyOnce waits for something to read and carries it over.
func copyOnce(to io.Writer, from syscall.RawConn, lend Lend) (ended bool, err error) {
	var buffer []byte
	giveBack := func() {}
	var n int
	var readErr error
	waitErr := from.Read(func(fd uintptr) bool {
		buffer, giveBack = lend()
		n, readErr = readOnce(int(fd), buffer)
		if errors.Is(readErr, unix.EAGAIN) {
			giveBack()
			giveBack = func() {}
			return false
		}
		return true
	})
	defer func() { giveBack() }()
	switch {
	case waitErr != nil:
		return false, waitErr
	case readErr != nil:
		return false, readErr
	case n == 0:
		return true, nil
	}
	_, err = to.Write(buffer[:n])
	return false, err
}

func readOnce(fd int, buffer []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buffer)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// AwaitLoss waits until a connection whose peer has sent its last byte is lost, or closed here, and tells which. Nobody reads
// such a connection any more: without it, one whose other side says nothing would stay when its peer is long gone.
func AwaitLoss(conn syscall.Conn) (lost bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	waitErr := raw.Read(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		lost = err == nil && code != 0
		return lost
	})
	return lost && waitErr == nil
}
