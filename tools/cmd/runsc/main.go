// Command runsc is gVisor's runsc, started so that a sandbox takes less of the processor until it runs. Nothing that it does is
// another than upstream's.
package main

import (
	"time"

	"gvisor.dev/gvisor/runsc/cli/maincli"

	"aenv/tools/internal/collections"
)

// startTime is how long a process counts as starting. On two busy processors a restore takes a third of that.
const startTime = 2 * time.Second

func main() {
	collections.Defer(startTime)
	installFilters()
	maincli.Main()
}
