package main

import (
	"sync"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	_ "gvisor.dev/gvisor/runsc/boot/filter"
	_ "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

// Where gVisor looks for filters that were compiled before: releases of its own have them there, by a step of Bazel's that a build
// of the module does not have.

//go:linkname sentryPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryPrograms map[string]precompiledseccomp.Program

//go:linkname sentryRegistration gvisor.dev/gvisor/runsc/boot/filter.registerPrecompiledProgramsOnce
var sentryRegistration sync.Once

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

//go:linkname goferRegistration gvisor.dev/gvisor/runsc/fsgofer/filter.registerPrecompiledProgramsOnce
var goferRegistration sync.Once

// installFilters registers our filters in place of none. For options that none of them is for, gVisor compiles as it would have.
func installFilters() {
	sentryRegistration.Do(func() { sentryPrograms = filters.sentry })
	goferRegistration.Do(func() { goferPrograms = filters.gofer })
}
