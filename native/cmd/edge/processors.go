package main

import (
	"os"
	"runtime"
)

// boundProcessors: every byte and every request that passes here is work for a sandbox too, so half of the processors are the
// sandboxes'. More threads that look for work would take from them and hand requests to and fro. Set GOMAXPROCS stands.
func boundProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
}
