// Command guestinit is the first program of a virtual machine: /init of the initrd that the kernel starts as pid 1.
//
// It puts the machine's disks together to the root folder, sets up what the kernel leaves to user space, and makes way:
// for the agent, or for the image's own init with the agent beside it.
package main

import (
	"fmt"
	"os"

	"aenv/native/internal/guestinit"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == guestinit.KeepAgentCommand:
		guestinit.KeepAgent()
	case os.Getpid() == 1:
		guestinit.Boot()
	default:
		fmt.Fprintln(os.Stderr, "aenv guestinit: not pid 1: this is the init of a virtual machine, there is nothing to do here")
		os.Exit(2)
	}
}
