package process

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"

	processpb "aenv/native/gen/process"
	"aenv/native/internal/envd/logbook"
)

// commandMaxBytes bounds how much of a command line is logged.
const commandMaxBytes = 1 << 10

const processLogger = "process"

// transcript logs the life of one process: its start, the lines it writes, its end. What a terminal shows is counted and not
// logged: it is a screen, no log.
type transcript struct {
	book           *logbook.Book
	pid            int
	stdout, stderr *logbook.Lines

	stdoutBytes, stderrBytes, terminalBytes atomic.Int64
}

// begin logs that a process was started.
func begin(book *logbook.Book, pid int, p *plan) *transcript {
	t := &transcript{book: book, pid: pid}
	t.stdout = book.Lines(processLogger, t.fields("stdout", nil))
	t.stderr = book.Lines(processLogger, t.fields("stderr", nil))
	command := strings.Join(append([]string{p.request.Process.Cmd}, p.request.Process.Args...), " ")
	if len(command) > commandMaxBytes {
		command = command[:commandMaxBytes] + "…"
	}
	book.Add(logbook.Info, processLogger, fmt.Sprintf("Process with pid %d started", pid), t.fields("process_start", logbook.Fields{
		"command": command, "cwd": p.cwd, "user": p.user.Name,
	}))
	return t
}

// output logs what the process has written.
func (t *transcript) output(from channel, data []byte) {
	switch from {
	case stdout:
		t.stdoutBytes.Add(int64(len(data)))
		t.stdout.Write(data)
	case stderr:
		t.stderrBytes.Add(int64(len(data)))
		t.stderr.Write(data)
	case terminal:
		t.terminalBytes.Add(int64(len(data)))
	}
}

// end logs how the process ended, behind its last line.
func (t *transcript) end(event *processpb.ProcessEvent, outOfMemory bool) {
	t.stdout.Flush()
	t.stderr.Flush()
	end := event.GetEnd()
	fields := logbook.Fields{
		"exit_code": strconv.Itoa(int(end.GetExitCode())),
		"status":    end.GetStatus(),
	}
	for name, counter := range map[string]*atomic.Int64{"stdout_bytes": &t.stdoutBytes, "stderr_bytes": &t.stderrBytes, "pty_bytes": &t.terminalBytes} {
		if bytes := counter.Load(); bytes > 0 {
			fields[name] = strconv.FormatInt(bytes, 10)
		}
	}
	level := logbook.Info
	if outOfMemory {
		level = logbook.Error
		fields["error"] = end.GetError()
	}
	t.book.Add(level, processLogger, fmt.Sprintf("Process with pid %d ended", t.pid), t.fields("process_end", fields))
}

// fields are those that every entry about the process has, and more.
func (t *transcript) fields(eventType string, more logbook.Fields) logbook.Fields {
	all := logbook.Fields{"event_type": eventType, "pid": strconv.Itoa(t.pid)}
	maps.Copy(all, more)
	return all
}
