package process

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// OutOfMemory is what a client reads of a command that ended because the sandbox ran out of memory.
	OutOfMemory = "killed, out of memory"
	// killedStatus is what a shell exits with when its last command was killed.
	killedStatus = 128 + int(unix.SIGKILL)
	// noticeWait is how long the end of a command that nobody here killed waits for the host to say that it did.
	noticeWait = 300 * time.Millisecond
	// noticeValid is how long after a kill for memory a command that ends killed is taken to have ended of it.
	noticeValid = 2 * time.Second
	// victimMinBytes is the size below which a process is not worth its death.
	victimMinBytes = 8 << 20
	// crowd is the number of processes from which on they are stopped before they are looked at.
	crowd = 32
	// swarmSize is how many times more than its largest process a session must hold to be killed as a whole.
	swarmSize = 16
	// victimWait is how long FreeMemory waits for its victim to be gone.
	victimWait = time.Second
	victimPoll = 5 * time.Millisecond
)

// Victim is what was killed for the memory it held.
type Victim struct {
	// PID and Name are those of the largest process.
	PID  int
	Name string
	// Others is how many more processes were killed with it.
	Others int
	// Bytes is what all of them held; what they share is counted for each.
	Bytes uint64

	session int
}

func (v Victim) String() string {
	who := fmt.Sprintf("%s: %s (pid %d)", OutOfMemory, v.Name, v.PID)
	if v.Others > 0 {
		// What they hold together cannot be said: they share much of it.
		return fmt.Sprintf("%s and %d others", who, v.Others)
	}
	return fmt.Sprintf("%s held %d MiB", who, v.Bytes>>20)
}

// FreeMemory kills the largest process of the session that holds the most memory, or the whole session where that is
// made of many small ones, as a fork bomb is. It returns when the largest is gone, and false when nothing holds enough to
// be worth it.
//
// The host's kernel would kill as well, a moment later and with less knowledge: it sees memory where it was first touched,
// which for what a program reads is the sandbox itself, not the program.
func (s *Service) FreeMemory(ctx context.Context) (Victim, bool) {
	if os.Getpid() == 1 && len(processNames()) > crowd {
		// Looking at so many takes longer than a fork bomb needs to fill what is left, so nobody moves meanwhile. (A job
		// that its user has stopped goes on afterwards; who was stopped before could only be told by looking.)
		// -1 is everybody else in a sandbox, of which this process is the first; elsewhere it would be the whole host.
		_ = unix.Kill(-1, unix.SIGSTOP)
		defer func() { _ = unix.Kill(-1, unix.SIGCONT) }()
	}
	relations := readRelations()
	victim, found := chooseVictim(relations)
	if !found {
		return victim, false
	}
	proc := s.ownerOf(relations, victim.PID)
	if proc != nil {
		proc.addCasualty(victim.String())
	}
	if victim.Others > 0 {
		killTree(victim.session)
	} else {
		_ = unix.Kill(victim.PID, unix.SIGKILL)
	}
	if proc != nil {
		go proc.tellCasualties()
	}
	awaitGone(ctx, victim.PID)
	return victim, true
}

// HostKilled takes the host's word that its kernel has killed processes of this sandbox for memory.
func (s *Service) HostKilled(count int) {
	s.hostKills.add(count)
}

// usage is what the processes of one session hold.
type usage struct {
	sum, largest    uint64
	count, largePID int
}

// chooseVictim looks at all that descend from the agent.
func chooseVictim(relations map[int]relation) (victim Victim, found bool) {
	sessions := map[int]usage{}
	agent := map[int]struct{}{os.Getpid(): {}}
	for pid, relation := range relations {
		bytes := residentBytes(pid)
		if bytes == 0 || !hasAncestor(relations, pid, agent) {
			continue
		}
		held := sessions[relation.session]
		held.sum += bytes
		held.count++
		if bytes > held.largest {
			held.largest, held.largePID = bytes, pid
		}
		sessions[relation.session] = held
	}
	var worst usage
	for session, held := range sessions {
		if held.sum > worst.sum {
			worst = held
			victim = Victim{PID: held.largePID, Bytes: held.largest, session: session}
		}
	}
	if worst.largest*swarmSize < worst.sum {
		victim.Others, victim.Bytes = worst.count-1, worst.sum
	}
	victim.Name = strings.TrimSpace(readProc(procFile(victim.PID, "comm")))
	return victim, victim.Bytes >= victimMinBytes
}

// residentBytes is 0 for a process that has just ended.
func residentBytes(pid int) uint64 {
	field := strings.Fields(readProc(procFile(pid, "statm")))
	if len(field) < 2 {
		return 0
	}
	pages, _ := strconv.ParseUint(field[1], 10, 64)
	return pages * uint64(os.Getpagesize())
}

// ownerOf finds the command that a process was started by, directly or not; nil when it was none.
func (s *Service) ownerOf(relations map[int]relation, pid int) *process {
	for range len(relations) {
		if proc := s.table.alive(pid); proc != nil {
			return proc
		}
		if proc := s.table.alive(relations[pid].session); proc != nil {
			return proc
		}
		pid = relations[pid].parent
	}
	return nil
}

// awaitGone waits until a killed process holds no memory any more: it is a zombie or not there.
func awaitGone(ctx context.Context, pid int) {
	ctx, cancel := context.WithTimeout(ctx, victimWait)
	defer cancel()
	for ctx.Err() == nil {
		if _, ok := readRelation(strconv.Itoa(pid)); !ok {
			return
		}
		time.Sleep(victimPoll)
	}
}

func procFile(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}

// casualties is what a command must still be told about memory.
type casualties struct {
	mu     sync.Mutex
	untold []string
	lastAt time.Time
}

func (p *process) addCasualty(line string) {
	p.casualties.mu.Lock()
	defer p.casualties.mu.Unlock()
	p.casualties.untold = append(p.casualties.untold, line)
	p.casualties.lastAt = time.Now()
}

// tellCasualties puts what is untold into the command's error output. When it returns, all of it has been.
func (p *process) tellCasualties() {
	p.casualties.mu.Lock()
	defer p.casualties.mu.Unlock()
	for _, line := range p.casualties.untold {
		from, text := stderr, line+"\n"
		if p.terminal != nil {
			from, text = terminal, "\r\n"+line+"\r\n"
		}
		p.hub.publish(from, []byte(text))
	}
	p.casualties.untold = nil
}

// diedOfMemory tells of an ended command whether the lack of memory ended it. For one that was killed, and not by a
// client, it waits a moment for the host's word.
func (p *process) diedOfMemory(host *hostKills) bool {
	isKilled := p.status.Signaled() && p.status.Signal() == unix.SIGKILL || p.status.ExitStatus() == killedStatus
	if !isKilled || p.killed.Load() {
		return false
	}
	p.casualties.mu.Lock()
	known := time.Since(p.casualties.lastAt) <= noticeValid
	p.casualties.mu.Unlock()
	if !known && host.claim(noticeWait) {
		p.addCasualty(OutOfMemory)
		known = true
	}
	return known
}

// hostKills is how many kills the host has told of that no command has been found for.
type hostKills struct {
	mu      sync.Mutex
	open    int
	at      time.Time
	changed chan struct{}
}

func (k *hostKills) add(count int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.at) > noticeValid {
		k.open = 0
	}
	k.open += count
	k.at = time.Now()
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}

// claim takes one kill, waiting for it if there is none yet.
func (k *hostKills) claim(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		k.mu.Lock()
		if k.open > 0 && time.Since(k.at) <= noticeValid {
			k.open--
			k.mu.Unlock()
			return true
		}
		if k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		k.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			return false
		}
	}
}
