// sentrysave has a running gVisor sandbox write its state into new files of a folder. Exits with 0 when they hold it; else with 1 and
// the reason as one line.
package main

import (
	"flag"
	"fmt"
	"os"

	"aenv/native/internal/sentrysave"
)

func main() {
	socket := flag.String("socket", "", "control socket of the sandbox")
	dir := flag.String("dir", "", "folder to write into, which has none of the files yet")
	disk := flag.Bool("disk", false, "the root file system alone, instead of all that the sandbox is")
	writeOut := flag.Bool("write-out", false, "have the disk begin before the end, for what will be synced then")
	flag.Parse()
	if *socket == "" || *dir == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	state := sentrysave.Memory
	if *disk {
		state = sentrysave.Disk
	}
	if err := sentrysave.Save(*socket, *dir, state, *writeOut); err != nil {
		fmt.Fprintln(os.Stderr, "sentrysave:", err)
		os.Exit(1)
	}
}
