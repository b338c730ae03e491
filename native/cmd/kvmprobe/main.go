// kvmprobe runs a few instructions in a virtual machine of /dev/kvm and prints what came of it as one line: `ran`, `emulated` or
// `failed`, a blank, and the reason. Exits with 0 whatever it was; tells nothing where it is not built for (`untested`).
package main

import (
	"fmt"
	"os"
	"time"

	"aenv/native/internal/kvmprobe"
)

const timeout = 3 * time.Second

func main() {
	// A guest that hangs holds its thread in the kernel: only the end of the process gets it out.
	time.AfterFunc(timeout, func() {
		fmt.Printf("%s the guest did not end within %s\n", kvmprobe.Failed, timeout)
		os.Exit(0)
	})
	outcome, reason := kvmprobe.Run("/dev/kvm")
	fmt.Println(outcome, reason)
}
