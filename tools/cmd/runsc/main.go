// Command runsc is gVisor's runsc, started so that a sandbox takes less of the processor until it runs, and a checkpoint less time until
// it is durable. Nothing that it does is another than upstream's.
package main

import (
	"os"
	"time"

	"gvisor.dev/gvisor/runsc/cli/maincli"

	"aenv/tools/internal/collections"
	"aenv/tools/internal/writeback"
)

const (
	// startTime is how long a process counts as starting. On two busy processors a restore takes a third of that.
	startTime = 2 * time.Second
	// writtenOut names, in the environment of whoever has a checkpoint made, the file that is to be durable next.
	writtenOut = "AENV_WRITTEN_OUT"
)

func main() {
	collections.Defer(startTime)
	installFilters()
	if path := os.Getenv(writtenOut); path != "" {
		// It is told to this process alone: what it starts has filters that allow no such thing.
		os.Unsetenv(writtenOut)
		// Until this process ends, which is when the checkpoint is there.
		go writeback.Follow(path, nil)
	}
	maincli.Main()
}
