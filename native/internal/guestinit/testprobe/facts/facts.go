// Package facts is what a program in a test's machine finds there.
package facts

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/internal/envd/guest"
)

// Facts is what a probe says in one line of JSON.
type Facts struct {
	Pid       int
	Args, Env []string
	Standard  [3]string
	// Disk: what file system the descriptor is of that the environment names.
	Disk             string
	Hostname         string
	OpenFiles, Tasks uint64
	OOMScore         string
	// Mounts: what is mounted where, as "type options".
	Mounts map[string]string
	// Root: the mode of / and whether files of the image count as on its device.
	RootMode     uint32
	OneDevice    bool
	Addresses    map[string][]string
	MTU          int
	Routes, ARP  string
	Greeting     string
	PanicSeconds string
	Modes        map[string]string
	// Problems: what could not be done that has to work.
	Problems []string
	UnixMs   int64
}

// Gather looks around. As root it also tries what must work, and leaves traces.
func Gather() *Facts {
	f := &Facts{Pid: os.Getpid(), Args: os.Args, Env: os.Environ(), Mounts: map[string]string{}, Modes: map[string]string{}}
	f.UnixMs = time.Now().UnixMilli()
	for i := range f.Standard {
		f.Standard[i], _ = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", i))
	}
	f.disk()
	f.Hostname, _ = os.Hostname()
	f.OpenFiles, f.Tasks = limit(unix.RLIMIT_NOFILE), limit(unix.RLIMIT_NPROC)
	f.OOMScore, f.PanicSeconds = f.read("/proc/self/oom_score_adj"), f.read("/proc/sys/kernel/panic")
	for line := range strings.Lines(f.read("/proc/self/mounts")) {
		if field := strings.Fields(line); len(field) > 3 {
			f.Mounts[field[1]] = field[2] + " " + field[3]
		}
	}
	for _, path := range []string{"/", "/dev/fuse", "/dev/net/tun", "/dev/ptmx", "/dev/shm", "/dev/null", "/dev/console"} {
		info, err := os.Stat(path)
		f.must(path, err)
		if err == nil {
			f.Modes[path] = info.Mode().String()
		}
	}
	f.network()
	if os.Getuid() == 0 {
		f.privileged()
	}
	return f
}

func (f *Facts) disk() {
	fd, err := strconv.Atoi(os.Getenv("AENV_DISK_FD"))
	if err != nil {
		return
	}
	var system unix.Statfs_t
	f.must("look at the disk", unix.Fstatfs(fd, &system))
	if system.Type == unix.EXT4_SUPER_MAGIC {
		f.Disk = "ext4"
	}
}

func (f *Facts) network() {
	f.Addresses = map[string][]string{}
	for _, name := range []string{"lo", "eth0"} {
		device, err := net.InterfaceByName(name)
		f.must(name, err)
		if err != nil {
			continue
		}
		addresses, _ := device.Addrs()
		for _, address := range addresses {
			f.Addresses[name] = append(f.Addresses[name], address.String())
		}
		f.MTU = device.MTU
	}
	f.Routes, f.ARP = f.read("/proc/net/route"), f.read("/proc/net/arp")
	if greeter, ok := strings.CutPrefix(f.read("/etc/greeter"), "at "); ok {
		connection, err := net.DialTimeout("tcp", greeter, 20*time.Second)
		f.must("dial "+greeter, err)
		if err == nil {
			text, err := io.ReadAll(connection)
			f.must("read from "+greeter, err)
			f.Greeting = string(text)
		}
	}
}

// privileged tries what must work in a machine, as root.
func (f *Facts) privileged() {
	var root, file unix.Stat_t
	f.must("stat", unix.Stat("/", &root))
	f.must("stat", unix.Stat("/bin/probe", &file))
	f.RootMode, f.OneDevice = root.Mode&0o7777, root.Dev == file.Dev

	f.must("write", os.WriteFile("/new", []byte("new"), 0o600))
	f.must("rename a folder of the image", os.Rename("/opt", "/renamed"))
	f.must("find its file", unix.Access("/renamed/file", unix.R_OK))
	if err := os.WriteFile("/.aenv/new", nil, 0o600); err == nil {
		f.Problems = append(f.Problems, "the tools can be written to")
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	f.must("open a terminal", err)
	number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	f.must("number of the terminal", err)
	f.must("its other end", unix.Access(fmt.Sprintf("/dev/pts/%d", number), unix.W_OK))
	_, err = os.ReadDir("/dev/fd/")
	f.must("list /dev/fd", err)
	f.restore()
}

// restore does what follows a restore, and takes what the agent would log for a problem.
func (f *Facts) restore() {
	var said bytes.Buffer
	log.SetOutput(&said)
	later := time.Now().Add(time.Hour).Round(0) // of the clock on the wall alone
	guest.Guest{}.Renew(guest.Facts{Time: later, Entropy: []byte("thirty-two bytes that are random")})
	if off := time.Until(later).Abs(); off > time.Minute {
		f.Problems = append(f.Problems, fmt.Sprintf("the clock is %v off", off))
	}
	if said.Len() > 0 {
		f.Problems = append(f.Problems, said.String())
	}
}

func (f *Facts) read(path string) string {
	text, err := os.ReadFile(path)
	f.must("read", err)
	return strings.TrimSpace(string(text))
}

func (f *Facts) must(what string, err error) {
	if err != nil {
		f.Problems = append(f.Problems, fmt.Sprintf("%s: %v", what, err))
	}
}

// limit is a limit's value if both of its values are the same.
func limit(resource int) uint64 {
	var value syscall.Rlimit
	if err := syscall.Getrlimit(resource, &value); err != nil || value.Cur != value.Max {
		return 0
	}
	return value.Max
}
