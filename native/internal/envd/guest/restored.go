package guest

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a restored machine has wrong in its kernel: the clock stood still, and the random numbers that come next are those
// of every other machine restored from the same state. Where the sandbox's kernel looks after them itself (gVisor), what is
// done here changes nothing.

const (
	// behindTolerance is how far the clock may be behind the host's. It stands still while a machine is paused, and what the
	// host says of its own clock is never early.
	behindTolerance = 5 * time.Millisecond
	// aheadTolerance is how far it may be ahead, more because the host's word may have been long on its way.
	aheadTolerance = 500 * time.Millisecond
)

// setClock takes over the host's time if ours is wrong.
func setClock(host time.Time) error {
	if host.IsZero() || !isWrong(time.Until(host)) {
		return nil
	}
	stamp := unix.NsecToTimespec(host.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &stamp); err != nil {
		return fmt.Errorf("%v off the host's and cannot be set: %w", time.Since(host).Round(time.Millisecond), err)
	}
	return nil
}

// isWrong judges a clock that is behind the host's by this much.
func isWrong(behind time.Duration) bool {
	return behind > behindTolerance || behind < -aheadTolerance
}

// entropyPool is struct rand_pool_info with room for what comes.
type entropyPool struct {
	creditBits int32
	sizeBytes  int32
	bytes      [maxEntropyBytes]byte
}

const maxEntropyBytes = 512

// kernelKeepsNoEntropy is set where the kernel has no such call, nor a state that is restored: gVisor's.
var kernelKeepsNoEntropy atomic.Bool

// addEntropy gives the kernel fresh randomness and has it use that from the next number on; by itself it would go on with
// the old state for up to a minute.
func addEntropy(entropy []byte) error {
	if len(entropy) == 0 || kernelKeepsNoEntropy.Load() {
		return nil
	}
	device, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	var pool entropyPool
	used := copy(pool.bytes[:], entropy)
	pool.creditBits, pool.sizeBytes = int32(used*8), int32(used)
	if err := control(device, unix.RNDADDENTROPY, unsafe.Pointer(&pool)); err != nil {
		if errors.Is(err, unix.ENOTTY) {
			kernelKeepsNoEntropy.Store(true)
			return nil
		}
		return fmt.Errorf("add: %w", err)
	}
	if err := control(device, unix.RNDRESEEDCRNG, nil); err != nil {
		return fmt.Errorf("reseed: %w", err)
	}
	return nil
}

func control(device *os.File, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
