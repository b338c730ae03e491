//go:build !amd64

package kvmprobe

// Run has no guest for this architecture; PVM is known on amd64 only.
func Run(string) (Outcome, string) { return Untested, "there is no test guest for this architecture" }
