package guestinit_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"aenv/native/internal/blobd/pack"
)

// Where the kernel and the initrd are that setting up makes.
const (
	kernelVariable = "AENV_TEST_GUEST_KERNEL"
	initrdVariable = "AENV_TEST_GUEST_INITRD"
)

// bootTimeout is generous: everything is emulated, and a boot takes some seconds on an idle machine.
const bootTimeout = 3 * time.Minute

// upperSize is that of the writable disk.
const upperSize = "64m"

// bench is what machines are made from.
type bench struct {
	t              *testing.T
	kernel, initrd string
	dir            string
}

func newBench(t *testing.T) *bench {
	kernel, initrd := os.Getenv(kernelVariable), os.Getenv(initrdVariable)
	if kernel == "" || initrd == "" {
		t.Skipf("%s and %s are not set: no machine is booted (npm test sets them)", kernelVariable, initrdVariable)
	}
	for _, program := range []string{"qemu-system-x86_64", "mke2fs"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: no machine is booted", program)
		}
	}
	return &bench{t, kernel, initrd, t.TempDir()}
}

// build compiles programs of this module.
func (b *bench) build(packages ...string) {
	b.t.Helper()
	build := exec.Command("go", append([]string{"build", "-trimpath", "-o", b.dir + "/"}, packages...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		b.t.Fatalf("%v\n%s", err, said)
	}
}

// disk packs a folder of programs (path in the image → name of what was built) and files into an EROFS image.
func (b *bench) disk(name string, programs, files map[string]string) string {
	b.t.Helper()
	tree := filepath.Join(b.dir, name)
	place := func(path string, data []byte, mode os.FileMode) {
		target := filepath.Join(tree, path)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(target, data, mode); err != nil {
			b.t.Fatal(err)
		}
	}
	for path, program := range programs {
		data, err := os.ReadFile(filepath.Join(b.dir, program))
		if err != nil {
			b.t.Fatal(err)
		}
		place(path, data, 0o755)
	}
	for path, text := range files {
		place(path, []byte(text), 0o644)
	}
	if err := os.Chmod(tree, 0o751); err != nil {
		b.t.Fatal(err)
	}
	image := tree + ".erofs"
	if _, err := pack.Directory(b.t.Context(), tree, image, b.t.TempDir()); err != nil {
		b.t.Fatal(err)
	}
	return image
}

// machine is one boot.
type machine struct {
	t *testing.T
	// forwarded is where, on this host, the agent's port of the guest is.
	forwarded string
	// console gives the lines of the console, and is closed when the machine has ended.
	console chan string
	seen    []string
	// kill ends it at once.
	kill func()
	// killed has an error once the machine has been ended because it took too long.
	killed context.Context
}

// upper makes an empty writable disk, as machines get it.
func (b *bench) upper() string {
	b.t.Helper()
	upper := filepath.Join(b.t.TempDir(), "upper.ext4")
	if said, err := exec.Command("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", upper, upperSize).CombinedOutput(); err != nil {
		b.t.Fatalf("%v\n%s", err, said)
	}
	return upper
}

// boot starts a machine from an image and tools. It ends with the test at the latest.
func (b *bench) boot(config, image, tools string) *machine {
	b.t.Helper()
	return b.bootOn(b.upper(), config, image, tools)
}

// bootOn is boot on a writable disk that is there.
func (b *bench) bootOn(upper, config, image, tools string) *machine {
	b.t.Helper()
	killed, kill := context.WithTimeout(b.t.Context(), bootTimeout)
	m := &machine{t: b.t, forwarded: freeAddress(b.t), killed: killed, console: make(chan string, 1000)}
	args := []string{"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-machine", "microvm,acpi=on,rtc=off", "-accel", "tcg", "-cpu", "max", "-m", "256",
		"-kernel", b.kernel, "-initrd", b.initrd, "-append", commandLine(b.t, config),
		"-device", "virtio-rng-device",
		"-netdev", "user,id=n,net=169.254.0.16/28,host=169.254.0.22,dns=169.254.0.23,dhcpstart=169.254.0.24,hostfwd=tcp:" + m.forwarded + "-169.254.0.21:49983",
		"-device", "virtio-net-device,netdev=n"}
	for i, drive := range []string{image + ",readonly=on", upper, tools + ",readonly=on"} {
		args = append(args, "-drive", fmt.Sprintf("id=d%d,if=none,format=raw,file=%s", i, drive), "-device", fmt.Sprintf("virtio-blk-device,drive=d%d", i))
	}
	emulator := exec.CommandContext(killed, "qemu-system-x86_64", args...)
	output, err := emulator.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	emulator.Stderr = emulator.Stdout
	if err := emulator.Start(); err != nil {
		b.t.Fatal(err)
	}
	m.kill = sync.OnceFunc(func() {
		kill()
		_ = emulator.Wait()
	})
	b.t.Cleanup(m.kill)
	go func() {
		defer close(m.console)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			m.console <- strings.TrimRight(lines.Text(), "\r")
		}
	}()
	return m
}

// await waits for a line of the console that matches, and returns what the pattern's group matched. When the machine ends
// without, the test does too.
func (m *machine) await(pattern string) string {
	m.t.Helper()
	wanted := regexp.MustCompile(pattern)
	for line := range m.console {
		m.seen = append(m.seen, line)
		if match := wanted.FindStringSubmatch(line); match != nil {
			return match[len(match)-1]
		}
	}
	m.t.Fatalf("no line of the console matches %q:\n%s", pattern, strings.Join(m.seen, "\n"))
	return ""
}

// awaitEnd waits until the machine has ended by itself.
func (m *machine) awaitEnd() {
	m.t.Helper()
	for line := range m.console {
		m.seen = append(m.seen, line)
	}
	if m.killed.Err() != nil {
		m.t.Errorf("the machine did not end:\n%s", strings.Join(m.seen, "\n"))
	}
}

// commandLine is the kernel's: quiet, with an emulated clock that needs no calibration, and a reset that ends the emulator.
func commandLine(t *testing.T, config string) string {
	t.Helper()
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	line := "console=ttyS0 quiet reboot=t panic=-1 no_timer_check"
	if match := regexp.MustCompile(`cpu MHz\s*: (\d+)\.(\d{3})`).FindSubmatch(cpus); match != nil {
		line += fmt.Sprintf(" tsc_early_khz=%s%s", match[1], match[2])
	}
	return line + " aenv.config=" + base64.RawURLEncoding.EncodeToString([]byte(config))
}

// freeAddress is one of this host that nothing listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
