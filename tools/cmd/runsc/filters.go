package main

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

// filters are compiled by ../filters, whose output set-up builds in place of this file; without it each process compiles its own.
var filters struct {
	sentry, gofer map[string]precompiledseccomp.Program
}
