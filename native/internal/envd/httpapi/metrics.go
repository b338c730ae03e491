package httpapi

import (
	"bufio"
	"math"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// clockTicksPerSecond is the unit of CPU times in /proc, fixed by the kernel's interface.
const clockTicksPerSecond = 100

// metricsBody is the shape that E2B's server reads; sizes are bytes unless they say MiB.
type metricsBody struct {
	Timestamp   int64   `json:"ts"`
	CPUCount    int     `json:"cpu_count"`
	CPUUsedPct  float64 `json:"cpu_used_pct"`
	MemTotal    uint64  `json:"mem_total"`
	MemUsed     uint64  `json:"mem_used"`
	MemCache    uint64  `json:"mem_cache"`
	MemTotalMiB uint64  `json:"mem_total_mib"`
	MemUsedMiB  uint64  `json:"mem_used_mib"`
	DiskUsed    uint64  `json:"disk_used"`
	DiskTotal   uint64  `json:"disk_total"`
}

func (s *Server) getMetrics(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, measure(&s.metrics))
}

// measure takes a reading; of the CPU, since the last one of the same sampler.
func measure(cpu *sampler) metricsBody {
	now := time.Now()
	body := metricsBody{Timestamp: now.Unix(), CPUCount: runtime.NumCPU(), CPUUsedPct: cpu.usedPercent(now)}
	memory := readMemory()
	body.MemTotal = memory["MemTotal"]
	body.MemCache = memory["Cached"] + memory["Buffers"]
	if free := memory["MemFree"] + body.MemCache; free < body.MemTotal {
		body.MemUsed = body.MemTotal - free
	}
	body.MemTotalMiB, body.MemUsedMiB = body.MemTotal>>20, body.MemUsed>>20
	var disk unix.Statfs_t
	if unix.Statfs("/", &disk) == nil {
		body.DiskTotal = disk.Blocks * uint64(disk.Bsize)
		body.DiskUsed = (disk.Blocks - disk.Bfree) * uint64(disk.Bsize)
	}
	return body
}

// sampler turns CPU time counters into a share of the time since the last question. It does nothing between questions.
type sampler struct {
	mu   sync.Mutex
	at   time.Time
	busy float64
}

// usedPercent is 100 when all CPUs are busy, as E2B's. The first answer is 0: there is nothing to compare with.
func (s *sampler) usedPercent(now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	busy := busySeconds()
	percent := 0.0
	if passed := now.Sub(s.at).Seconds(); !s.at.IsZero() && passed > 0 && busy > s.busy {
		percent = math.Round(10000*(busy-s.busy)/passed/float64(runtime.NumCPU())) / 100
	}
	s.at, s.busy = now, busy
	return min(percent, 100)
}

// busySeconds reads the machine's counter, or adds up the processes where the kernel does not keep one (gVisor).
func busySeconds() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err == nil {
		line, _, _ := strings.Cut(string(text), "\n")
		ticks := 0.0
		for i, field := range strings.Fields(line) {
			// user, nice, system, then idle and iowait, then irq, softirq, steal.
			if i == 0 || i == 4 || i == 5 || i > 8 {
				continue
			}
			n, _ := strconv.ParseFloat(field, 64)
			ticks += n
		}
		if ticks > 0 {
			return ticks / clockTicksPerSecond
		}
	}
	return processSeconds()
}

func processSeconds() float64 {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	ticks := 0.0
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		field := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(field) > 12 {
			user, _ := strconv.ParseFloat(field[11], 64)
			system, _ := strconv.ParseFloat(field[12], 64)
			ticks += user + system
		}
	}
	return ticks / clockTicksPerSecond
}

// readMemory parses /proc/meminfo into bytes.
func readMemory() map[string]uint64 {
	values := map[string]uint64{}
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return values
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		name, rest, _ := strings.Cut(scanner.Text(), ":")
		if field := strings.Fields(rest); len(field) > 0 {
			kib, _ := strconv.ParseUint(field[0], 10, 64)
			values[name] = kib << 10
		}
	}
	return values
}
