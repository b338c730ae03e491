package guestinit_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	processpb "aenv/native/gen/process"
	"aenv/native/gen/process/processconnect"
	"aenv/native/internal/guestinit/testprobe/facts"
)

const config = `{"hostname":"box","network":{"device":"eth0","address":"169.254.0.21/30","gateway":"169.254.0.22",` +
	`"gatewayMac":"52:55:a9:fe:00:16","mtuBytes":1400},"maxTasks":512,"openFiles":65536,"shmBytes":33554432%s}`

func parse(t *testing.T, text string) facts.Facts {
	t.Helper()
	var f facts.Facts
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	for _, problem := range f.Problems {
		t.Errorf("pid %d, %s: %s", f.Pid, f.Args[0], problem)
	}
	return f
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, not %v", what, got, want)
	}
}

// files of an image that a probe looks for.
func imageFiles(greeter string) map[string]string {
	return map[string]string{
		"etc/passwd":  "root:x:0:0:root:/root:/bin/probe\nuser:x:1000:1000::/tmp:/bin/probe\n",
		"etc/group":   "root:x:0:\nuser:x:1000:\n",
		"etc/greeter": "at " + greeter,
		"opt/file":    "of the image",
	}
}

func TestTheAgentIsPid1OfACompleteMachine(t *testing.T) {
	b := newBench(t)
	b.build("aenv/native/internal/guestinit/testprobe")
	image := b.disk("image", map[string]string{"bin/probe": "testprobe"}, imageFiles(greet(t)))
	tools := b.disk("tools", map[string]string{"envd": "testprobe"}, nil)
	m := b.boot(fmt.Sprintf(config, ""), image, tools)
	f := parse(t, m.await("PROBE (.*)"))
	m.awaitEnd()

	equal(t, "pid", f.Pid, 1)
	equal(t, "arguments", strings.Join(f.Args, " "), "/.aenv/envd")
	env, _, _ := strings.Cut(strings.Join(f.Env, " "), " AENV_DISK_FD=")
	equal(t, "environment", env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8")
	equal(t, "file system of the disk it is given", f.Disk, "ext4")
	equal(t, "standard input, output and error", f.Standard, [3]string{"/dev/null", "/dev/null", "/dev/null"})
	checkMachine(t, f)
	if _, found := f.Mounts["/run"]; found {
		t.Error("/run is not on the disk")
	}
}

// checkMachine checks what is the same in every machine.
func checkMachine(t *testing.T, f facts.Facts) {
	t.Helper()
	equal(t, "host name", f.Hostname, "box")
	equal(t, "open files", f.OpenFiles, 65536)
	equal(t, "tasks", f.Tasks, 512)
	equal(t, "seconds after a panic", f.PanicSeconds, "1")
	equal(t, "mode of /", f.RootMode, 0o751)
	equal(t, "one device for all files", f.OneDevice, true)
	for target, want := range map[string]string{
		"/":              "overlay rw,noatime",
		"/proc":          "proc rw,nosuid,nodev,noexec",
		"/sys":           "sysfs rw,nosuid,nodev,noexec",
		"/sys/fs/cgroup": "cgroup2 rw,nosuid,nodev,noexec",
		"/dev":           "devtmpfs rw,nosuid",
		"/dev/pts":       "devpts rw,nosuid,noexec,relatime,gid=5,mode=620,ptmxmode=666",
		"/dev/shm":       "tmpfs rw,nosuid,nodev,relatime,size=32768k",
		"/.aenv":         "erofs ro,nosuid,nodev",
	} {
		if !strings.HasPrefix(f.Mounts[target], want) {
			t.Errorf("%s is mounted as %q, not %q", target, f.Mounts[target], want)
		}
	}
	for path, want := range map[string]string{
		"/dev/fuse": "Dcrw-rw-rw-", "/dev/net/tun": "Dcrw-rw-rw-", "/dev/ptmx": "Dcrw-rw-rw-", "/dev/null": "Dcrw-rw-rw-",
		"/dev/shm": "dtrwxrwxrwx", "/dev/console": "Dcrw-------",
	} {
		equal(t, "mode of "+path, f.Modes[path], want)
	}
	if !slices.Contains(f.Addresses["lo"], "127.0.0.1/8") || !slices.Contains(f.Addresses["eth0"], "169.254.0.21/30") {
		t.Errorf("addresses: %v", f.Addresses)
	}
	equal(t, "MTU", f.MTU, 1400)
	equal(t, "what comes from the network", f.Greeting, "hello")
	const permanent = "0x6"
	if arp := strings.Join(strings.Fields(f.ARP), " "); !strings.Contains(arp, "169.254.0.22 0x1 "+permanent+" 52:55:a9:fe:00:16 * eth0") {
		t.Errorf("the gateway's MAC address is not there for good: %s", arp)
	}
}

func TestAnImagesOwnInitRunsBesideTheAgentAndTheMachineEndsWithTheAgent(t *testing.T) {
	b := newBench(t)
	b.build("aenv/native/internal/guestinit/testprobe", "aenv/native/cmd/envd")
	image := b.disk("image", map[string]string{"bin/probe": "testprobe", "sbin/init": "testprobe"}, imageFiles(greet(t)))
	tools := b.disk("tools", map[string]string{"envd": "envd"}, nil)
	m := b.boot(fmt.Sprintf(config, `,"init":["/sbin/init","one","two"]`), image, tools)
	f := parse(t, m.await("PROBE (.*)"))
	equal(t, "pid", f.Pid, 1)
	equal(t, "arguments", strings.Join(f.Args, " "), "/sbin/init one two")
	equal(t, "environment", strings.Join(f.Env, " "), "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/ TERM=linux")
	equal(t, "standard input, output and error", f.Standard, [3]string{"/dev/console", "/dev/console", "/dev/console"})
	equal(t, "mount of /run", strings.HasPrefix(f.Mounts["/run"], "tmpfs rw,nosuid,nodev,"), true)
	checkMachine(t, f)

	stamp := time.Date(2042, 1, 1, 0, 0, 0, 0, time.UTC)
	m.initAgent(fmt.Sprintf(`{"timestamp":%q,"entropy":"MDEyMzQ1Njc4OWFiY2RlZg==","hostname":"renamed","defaultUser":"user"}`, stamp.Format(time.RFC3339)))
	said, err := m.run("user", "/bin/probe")
	if err != nil {
		t.Fatal(err)
	}
	inside := parse(t, said)
	if late := time.UnixMilli(inside.UnixMs).Sub(stamp); late < 0 || late > bootTimeout {
		t.Errorf("the clock is %v after the one that the agent was told", late)
	}
	equal(t, "host name", inside.Hostname, "renamed")
	equal(t, "tasks of a program of a user", inside.Tasks, 512)
	equal(t, "disk of a program", f.Disk+inside.Disk, "")
	equal(t, "what protects a program from the OOM killer", inside.OOMScore, "0")

	for range 2 {
		equal(t, "status of freezing the disk", m.post("/fsfreeze", ""), http.StatusNoContent)
		equal(t, "status of thawing the disk", m.post("/fsthaw", ""), http.StatusNoContent)
	}
	if _, err := m.run("root", "/bin/probe"); err != nil {
		t.Errorf("after the disk was thawed: %v", err)
	}

	_, _ = m.run("root", "/bin/probe", "kill-agent") // there is nobody to answer
	m.await("aenv guestinit: the agent was killed by signal 9")
	m.awaitEnd()
}

func TestAMachineThatCannotBootSaysWhyAndEnds(t *testing.T) {
	b := newBench(t)
	b.build("aenv/native/internal/guestinit/testprobe")
	image := b.disk("image", map[string]string{"bin/probe": "testprobe"}, nil)
	m := b.boot(fmt.Sprintf(config, `,"init":["/sbin/absent"]`), image, image)
	m.await("aenv guestinit: find the image's init /sbin/absent: no such file or directory")
	m.awaitEnd()
}

// greet says hello to whoever connects, and returns the address under which a guest finds that.
func greet(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(connection, "hello")
			_ = connection.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return "169.254.0.22:" + port
}

// initAgent tells the agent who it is, as soon as it listens.
func (m *machine) initAgent(body string) {
	m.t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	for {
		answer, err := client.Post("http://"+m.forwarded+"/init", "application/json", strings.NewReader(body))
		if err == nil {
			answer.Body.Close()
			equal(m.t, "status of init", answer.StatusCode, http.StatusNoContent)
			return
		}
		select {
		case line, alive := <-m.console:
			if m.seen = append(m.seen, line); !alive {
				m.t.Fatalf("the machine ended before its agent answered: %v\n%s", err, strings.Join(m.seen, "\n"))
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// post returns the status that the agent answers with.
func (m *machine) post(path, body string) int {
	m.t.Helper()
	client := http.Client{Timeout: 30 * time.Second}
	answer, err := client.Post("http://"+m.forwarded+path, "application/json", strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

// run has the agent run a program as a user, and returns what it printed.
func (m *machine) run(user, command string, args ...string) (string, error) {
	client := processconnect.NewProcessClient(http.DefaultClient, "http://"+m.forwarded, connect.WithProtoJSON())
	request := connect.NewRequest(&processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: command, Args: args}})
	request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	stream, err := client.Start(m.t.Context(), request)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	printed := ""
	for stream.Receive() {
		printed += string(stream.Msg().GetEvent().GetData().GetStdout())
	}
	return printed, stream.Err()
}
