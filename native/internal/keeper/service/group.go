package service

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"aenv/native/internal/keeper/logfile"
	"aenv/native/internal/keeper/proc"
)

// ErrUnknown is returned for a name that no service has.
var ErrUnknown = errors.New("no such service")

// Group is the services of one keeper, in the order of the configuration.
type Group struct {
	table   *proc.Table
	logs    *logfile.Bounder
	records *records
	log     *slog.Logger

	changing sync.Mutex // held while services are begun, replaced and stopped

	mu       sync.Mutex
	services []*service
}

// NewGroup returns a group without services. recordsFile is where it notes which processes its services are.
func NewGroup(table *proc.Table, logs *logfile.Bounder, recordsFile string, log *slog.Logger) (*Group, error) {
	records, err := loadRecords(recordsFile)
	if err != nil {
		return nil, err
	}
	return &Group{table: table, logs: logs, records: records, log: log}, nil
}

// Apply makes the services those of the definitions: stops, last first, what is not among them; starts, in their order,
// what is new; replaces what has changed; leaves the others alone. A process that an earlier keeper started is taken up,
// and likewise replaced when its definition was another. The error tells which services could not be started; they are
// tried again.
func (g *Group) Apply(definitions []Definition) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	kept := map[string]bool{}
	for _, d := range definitions {
		kept[d.Name] = true
	}
	g.stopOthers(kept)
	var failures []error
	for at, d := range definitions {
		s := g.find(d.Name)
		if s == nil {
			s = g.newService(d)
			failures = append(failures, g.begin(s))
		} else if changed, err := s.want(d); err != nil || changed {
			failures = append(failures, err)
			_, err := s.ask(false)
			failures = append(failures, err)
		}
		g.place(s, at)
	}
	return errors.Join(failures...)
}

// Restart stops a service and starts it again from its current definition. It returns the new pid.
func (g *Group) Restart(name string) (int, error) {
	s := g.find(name)
	if s == nil {
		return 0, fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	return s.ask(false)
}

// StopAll stops all services, last first.
func (g *Group) StopAll() {
	g.changing.Lock()
	defer g.changing.Unlock()
	g.stopOthers(nil)
}

// Status lists the services in order.
func (g *Group) Status() []Status {
	list := []Status{}
	for _, s := range g.list() {
		list = append(list, s.snapshot())
	}
	return list
}

func (g *Group) list() []*service {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.services)
}

func (g *Group) find(name string) *service {
	for _, s := range g.list() {
		if s.name == name {
			return s
		}
	}
	return nil
}

// place moves or puts a service to its place in the order.
func (g *Group) place(s *service, at int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := slices.DeleteFunc(g.services, func(other *service) bool { return other == s })
	g.services = slices.Insert(rest, at, s)
}

// stopOthers stops, last first, what is not to be kept, also what only the records of an earlier keeper name.
func (g *Group) stopOthers(kept map[string]bool) {
	for _, s := range slices.Backward(g.list()) {
		if kept[s.name] {
			continue
		}
		// Its loop ends with this request; it cannot have ended before, for nobody else asks for that.
		_, _ = s.ask(true)
		g.mu.Lock()
		g.services = slices.DeleteFunc(g.services, func(other *service) bool { return other == s })
		g.mu.Unlock()
	}
	for _, name := range g.records.names() {
		if kept[name] {
			continue
		}
		rec, _ := g.records.get(name)
		s := g.newService(Definition{Name: name, PidFile: rec.PidFile})
		if process, alive := g.table.Follow(rec.Pid, rec.StartTicks); alive {
			s.end(process)
		} else if err := g.records.remove(name); err != nil {
			g.log.Error("cannot forget a service", "service", name, "error", err)
		}
	}
}

func (g *Group) newService(d Definition) *service {
	return &service{
		name: d.Name, table: g.table, logs: g.logs, records: g.records, log: g.log,
		requests: make(chan request), done: make(chan struct{}),
		definition: d, wanted: d,
		status: Status{Name: d.Name, State: "backoff", LogFile: d.LogFile},
	}
}

// begin takes the service up or starts it, and returns when it runs or could not be started.
func (g *Group) begin(s *service) error {
	process, rec := g.takeUp(s)
	first := request{reply: make(chan reply, 1)}
	go s.loop(process, time.UnixMilli(rec.StartedAtUnixMs), first)
	if answer := <-first.reply; answer.err != nil || process == nil {
		return answer.err
	}
	digest, err := s.definition.digest()
	if err != nil || rec.Digest == digest {
		return err
	}
	_, err = s.ask(false)
	return err
}

// takeUp finds the process that an earlier keeper started for a service; nil when there is none.
func (g *Group) takeUp(s *service) (*proc.Process, record) {
	d := s.definition
	rec, recorded := g.records.get(d.Name)
	if !recorded {
		digest, err := d.digest()
		pid := pidFromFile(d.PidFile, d.Argv)
		if err != nil || pid == 0 {
			return nil, record{}
		}
		// Nothing tells what else it was started with: it counts as what is wanted.
		rec = record{Pid: pid, StartedAtUnixMs: time.Now().UnixMilli(), PidFile: d.PidFile, Digest: digest}
	}
	process, alive := g.table.Follow(rec.Pid, rec.StartTicks)
	if !alive {
		return nil, record{}
	}
	rec.StartTicks = process.StartTicks()
	if err := s.note(rec); err != nil {
		g.log.Error("cannot write down a service", "service", d.Name, "error", err)
	}
	// Its log file goes on being bounded; the descriptor is the service's own.
	if file, err := g.logs.Open(d.LogFile, d.logLimitBytes()); err == nil {
		file.Close()
	} else {
		g.log.Error("cannot bound a log file", "service", d.Name, "error", err)
	}
	g.log.Info("service taken up", "service", d.Name, "pid", rec.Pid)
	return process, rec
}
