package process

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// keyboard is who types on a terminal.
//
// Ctrl-C, Ctrl-\ and Ctrl-Z: Linux acts on them as they arrive, and throws away the input that nobody has read. gVisor, where the
// terminal gives lines, looks at nothing behind a whole line until that is read, which a program that does not read its terminal
// never does: the key would be dead. So the input is thrown away here, before the terminal is told of the key. On Linux that takes
// what the terminal has not looked at yet, which it would throw away next.
type keyboard struct {
	controller *os.File
	// last is the byte typed before: one that quotes may end a piece.
	last byte
}

// press returns what is to be written to the terminal for keys, which it may change. Where one of them signals, the others before
// it are not written: they would be thrown away too.
func (k *keyboard) press(keys []byte) []byte {
	if len(keys) == 0 {
		return keys
	}
	before := k.last
	k.last = keys[len(keys)-1]
	// Terminals are not set up to have letters signal: most input is spared the call of the kernel.
	if !slices.ContainsFunc(keys, isControl) {
		return keys
	}
	signals, end := k.signals(before, keys)
	if len(signals) == 0 {
		return keys
	}
	_ = onDescriptor(k.controller, func(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCOFLUSH) })
	begin := end - len(signals)
	copy(keys[begin:end], signals)
	return keys[begin:]
}

// signals picks the keys that signal and throw away the input, as the terminal is now, and tells where the last of them ends.
func (k *keyboard) signals(before byte, keys []byte) (signals []byte, end int) {
	var mode *unix.Termios
	err := onDescriptor(k.controller, func(fd int) (err error) {
		mode, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err != nil || mode.Lflag&(unix.ISIG|unix.NOFLSH) != unix.ISIG {
		return nil, 0
	}
	quote := byte(noKey)
	if mode.Lflag&unix.IEXTEN != 0 {
		quote = mode.Cc[unix.VLNEXT]
	}
	for i, key := range keys {
		isQuoted := quote != noKey && before == quote
		before = key
		if isQuoted || key == noKey {
			continue
		}
		if key == mode.Cc[unix.VINTR] || key == mode.Cc[unix.VQUIT] || key == mode.Cc[unix.VSUSP] {
			signals, end = append(signals, key), i+1
		}
	}
	return signals, end
}

// noKey stands in a terminal's settings for a function that no key has.
const noKey = 0

func isControl(key byte) bool { return key < ' ' || key == 0x7f }
