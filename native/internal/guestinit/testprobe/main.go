// Command testprobe plays, in a test's machine, the agent, the image's init or a program in the sandbox, and says what it
// finds there.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"aenv/native/internal/guestinit/testprobe/facts"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "kill-agent" {
		fmt.Println(syscall.Kill(os.Getppid(), syscall.SIGKILL))
		return
	}
	found := facts.Gather()
	text, err := json.Marshal(found)
	if err != nil {
		log.Fatal(err)
	}
	if os.Args[0] == "/bin/probe" {
		fmt.Println(string(text))
		return
	}
	console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintf(console, "PROBE %s\n", text)
	_ = unix.IoctlSetInt(int(console.Fd()), unix.TCSBRK, 1)
	if os.Getpid() == 1 && strings.HasSuffix(os.Args[0], "envd") {
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	}
	for {
		time.Sleep(time.Hour)
	}
}
