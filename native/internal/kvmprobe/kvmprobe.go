// Package kvmprobe finds out whether /dev/kvm runs ordinary guests on the processor.
//
// KVM without virtualization by hardware (kvm_pvm) runs guests whose kernels know of it, and interprets the code of others. That
// goes unnoticed until a guest comes upon an instruction the interpreter lacks. The guest here executes two of those, which any
// guest kernel may use: popcnt and fwait.
package kvmprobe

// Outcome of a run.
type Outcome string

const (
	// Ran: the processor executes ordinary guests.
	Ran Outcome = "ran"
	// Emulated: KVM interprets them, and lacks what they need.
	Emulated Outcome = "emulated"
	// Failed: there is no working KVM. The reason says at which step.
	Failed Outcome = "failed"
	// Untested: there is no guest for this architecture.
	Untested Outcome = "untested"
)
