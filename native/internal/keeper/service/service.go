// Package service keeps services running: starts them, restarts them with a growing delay, takes up those that an
// earlier keeper started, and stops them when told to.
package service

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"aenv/native/internal/keeper/command"
	"aenv/native/internal/keeper/logfile"
	"aenv/native/internal/keeper/proc"
)

const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second
	// healthyAfter is how long a service must have run for its next restart to be quick again.
	healthyAfter = 10 * time.Second
	// noteAgain is how long a service that could not be written down, as on a full disk, waits for another attempt.
	noteAgain = time.Second
)

// Status is a service at one moment. State is "running", "backoff" (waiting for its next start) or "stopped".
type Status struct {
	Name      string
	Pid       int // 0 when it does not run
	State     string
	Restarts  int
	StartedAt time.Time
	LogFile   string
}

// service is one supervised process. Its loop alone starts and stops it; others send requests.
type service struct {
	name     string
	table    *proc.Table
	logs     *logfile.Bounder
	records  *records
	log      *slog.Logger
	requests chan request
	done     chan struct{} // closed when the loop has ended

	// definition is what the process runs from; the loop's own.
	definition Definition

	mu     sync.Mutex
	wanted Definition // what the next start is from
	status Status
}

// request asks the loop to end the process and, unless stop is set, to start it anew from the wanted definition.
type request struct {
	stop  bool
	reply chan reply // with room for one; nil in the request that is none
}

type reply struct {
	pid int
	err error
}

func (r request) answer(pid int, err error) {
	if r.reply != nil {
		r.reply <- reply{pid, err}
	}
}

func (s *service) snapshot() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *service) update(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// want sets what the next start is from, and tells whether that is a change.
func (s *service) want(d Definition) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, err := s.wanted.digest()
	if err != nil {
		return false, err
	}
	after, err := d.digest()
	s.wanted = d
	return before != after, err
}

// ask hands a request to the loop and waits until it is done: the pid of the new process, or 0 after a stop.
func (s *service) ask(stop bool) (int, error) {
	r := request{stop: stop, reply: make(chan reply, 1)}
	select {
	case s.requests <- r:
	case <-s.done:
		return 0, fmt.Errorf("service %s is stopped", s.name)
	}
	answer := <-r.reply
	return answer.pid, answer.err
}

// loop supervises until a stop request. process is the one taken up from an earlier keeper, or nil; first is answered
// when the service runs, or could not be started for the first time.
func (s *service) loop(process *proc.Process, startedAt time.Time, first request) {
	defer close(s.done)
	delay := firstDelay
	pending := first
	for {
		pending = s.once(process, &startedAt, pending)
		process = nil
		if pending.reply == nil {
			if time.Since(startedAt) >= healthyAfter {
				delay = firstDelay
			}
			s.update(func(st *Status) { st.Pid, st.State = 0, "backoff" })
			select {
			case <-time.After(delay):
				delay = min(2*delay, lastDelay)
			case pending = <-s.requests:
			}
		}
		if pending.stop {
			s.update(func(st *Status) { st.Pid, st.State = 0, "stopped" })
			pending.answer(0, nil)
			return
		}
		s.mu.Lock()
		s.definition = s.wanted
		s.status.Restarts++
		s.status.LogFile = s.definition.LogFile
		s.mu.Unlock()
		if pending.reply != nil {
			delay = firstDelay
		}
	}
}

// once runs the service until it ends by itself or a request ends it; that request is returned, still to be answered.
func (s *service) once(process *proc.Process, startedAt *time.Time, pending request) request {
	note := func() error { return nil }
	if process == nil {
		*startedAt = time.Now()
		var rec record
		var err error
		if process, rec, err = s.start(*startedAt); err != nil {
			s.log.Error("cannot start a service", "service", s.name, "error", err)
			pending.answer(0, err)
			return request{}
		}
		note = func() error { return s.note(rec) }
	}
	noted := s.noting(note)
	s.update(func(st *Status) { st.Pid, st.State, st.StartedAt = process.Pid(), "running", *startedAt })
	pending.answer(process.Pid(), nil)
	for {
		select {
		case <-process.Done():
			s.ended(process)
			return request{}
		case next := <-s.requests:
			s.end(process)
			return next
		case <-noted:
			noted = s.noting(note)
		}
	}
}

// noting writes down which process the service is. What it returns comes when that has to be tried again: until then a
// later keeper may not find the process, and others do not know its pid.
func (s *service) noting(note func() error) <-chan time.Time {
	err := note()
	if err == nil {
		return nil
	}
	s.log.Error("cannot write down a service", "service", s.name, "error", err)
	return time.After(noteAgain)
}

func (s *service) start(at time.Time) (*proc.Process, record, error) {
	d := s.definition
	digest, err := d.digest()
	if err != nil {
		return nil, record{}, err
	}
	path, err := command.Find(d.Argv[0], d.Env)
	if err != nil {
		return nil, record{}, err
	}
	out, err := s.logs.Open(d.LogFile, d.logLimitBytes())
	if err != nil {
		return nil, record{}, err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, record{}, err
	}
	defer null.Close()
	process, err := s.table.Start(proc.Spec{
		Path: path, Argv: d.Argv, Env: command.Environment(d.Env), Dir: d.Cwd, Files: [3]*os.File{null, out, out}, Sheltered: true,
	})
	if err != nil {
		return nil, record{}, fmt.Errorf("start %s: %w", path, err)
	}
	s.log.Info("service started", "service", d.Name, "pid", process.Pid())
	return process, record{
		Pid: process.Pid(), StartTicks: process.StartTicks(), StartedAtUnixMs: at.UnixMilli(),
		PidFile: d.PidFile, Digest: digest,
	}, nil
}

func (s *service) note(rec record) error {
	return errors.Join(WriteFile(rec.PidFile, []byte(strconv.Itoa(rec.Pid)+"\n")), s.records.set(s.name, rec))
}

// end stops the process: SIGTERM, and SIGKILL when it does not end in time.
func (s *service) end(process *proc.Process) {
	d := s.definition
	if err := process.Signal(syscall.SIGTERM); err != nil {
		s.log.Error("cannot stop a service", "service", d.Name, "error", err)
	}
	timer := time.NewTimer(d.stopTimeout())
	defer timer.Stop()
	select {
	case <-process.Done():
	case <-timer.C:
		s.log.Warn("service did not end in time and is killed", "service", d.Name, "pid", process.Pid())
		if err := process.Signal(syscall.SIGKILL); err != nil {
			s.log.Error("cannot kill a service", "service", d.Name, "error", err)
		}
		<-process.Done()
	}
	s.ended(process)
}

// ended clears away what names a process that is gone.
func (s *service) ended(process *proc.Process) {
	exit := process.Exit()
	s.log.Info("service ended", "service", s.name, "pid", process.Pid(), "exitCode", exit.Code, "signal", exit.Signal)
	if err := os.Remove(s.definition.PidFile); err != nil && !os.IsNotExist(err) {
		s.log.Error("cannot remove a pid file", "service", s.name, "error", err)
	}
	if err := s.records.remove(s.name); err != nil {
		s.log.Error("cannot record the end of a service", "service", s.name, "error", err)
	}
}
