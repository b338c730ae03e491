package process

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	processpb "aenv/native/gen/process"
)

// wires are the descriptors between the agent and a process that is about to start.
type wires struct {
	child [3]int
	own   []*os.File
	// opened lists the child's descriptors once each, to be closed after the fork.
	opened []int
}

// empty is /dev/null, which is opened once for all that have no input: they share its flags, which say nothing of an empty file.
type empty struct {
	mu   sync.Mutex
	file *os.File
}

var noInput empty

func (e *empty) open() (fd int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file == nil {
		if e.file, err = os.Open("/dev/null"); err != nil {
			return -1, err
		}
	}
	return int(e.file.Fd()), nil
}

// wire opens what the plan asks for, a terminal or pipes, and hangs the agent's ends on proc. After an error nothing
// is left open.
func wire(p *plan, proc *process) (*wires, error) {
	w := &wires{}
	var err error
	if pty := p.request.GetPty(); pty != nil {
		err = w.terminal(pty, p, proc)
	} else {
		err = w.pipes(p.request.Stdin == nil || p.request.GetStdin(), proc)
	}
	if err != nil {
		w.closeChild()
		w.closeOwn()
		return nil, err
	}
	return w, nil
}

func (w *wires) terminal(pty *processpb.PTY, p *plan, proc *process) error {
	controller, side, err := openTerminal(windowSize(pty), int(p.user.UID), int(p.user.GID))
	if err != nil {
		return err
	}
	w.own = append(w.own, controller)
	w.opened = append(w.opened, side)
	w.child = [3]int{side, side, side}
	proc.terminal = controller
	proc.in = newInput(controller, proc.exited)
	proc.in.keyboard = &keyboard{controller: controller}
	proc.outputs = []*output{newOutput(controller, terminalChunkBytes, terminal)}
	return nil
}

func (w *wires) pipes(withInput bool, proc *process) error {
	var err error
	if withInput {
		var own *os.File
		if own, err = w.pipe(0); err != nil {
			return err
		}
		proc.in = newInput(own, proc.exited)
	} else {
		if w.child[0], err = noInput.open(); err != nil {
			return err
		}
	}
	for number, from := range []channel{stdout, stderr} {
		own, err := w.pipe(number + 1)
		if err != nil {
			return err
		}
		proc.outputs = append(proc.outputs, newOutput(own, pipeChunkBytes, from))
	}
	return nil
}

// pipe connects one of the child's standard descriptors and returns our end, which does not block.
func (w *wires) pipe(number int) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	own, child := ends[0], ends[1]
	if number == 0 {
		own, child = ends[1], ends[0]
	}
	w.opened = append(w.opened, child)
	w.child[number] = child
	// A pipe end that was just made has no other flags to keep.
	_, err := unix.FcntlInt(uintptr(own), unix.F_SETFL, unix.O_NONBLOCK)
	file := os.NewFile(uintptr(own), "pipe")
	w.own = append(w.own, file)
	return file, err
}

func (w *wires) closeChild() {
	for _, fd := range w.opened {
		unix.Close(fd)
	}
	w.opened = nil
}

func (w *wires) closeOwn() {
	for _, file := range w.own {
		file.Close()
	}
}

// windowSize is the size asked for, 80x24 where a side is missing.
func windowSize(pty *processpb.PTY) unix.Winsize {
	size := unix.Winsize{Col: 80, Row: 24}
	if cols := pty.GetSize().GetCols(); cols > 0 {
		size.Col = uint16(min(cols, 0xffff))
	}
	if rows := pty.GetSize().GetRows(); rows > 0 {
		size.Row = uint16(min(rows, 0xffff))
	}
	return size
}
