package kvmprobe

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRunOfADeviceThatIsNotThere(t *testing.T) {
	outcome, reason := Run(filepath.Join(t.TempDir(), "kvm"))
	if outcome != Untested && (outcome != Failed || !strings.Contains(reason, "no such file")) {
		t.Errorf("%s: %s", outcome, reason)
	}
}

func TestRunOfSomethingElse(t *testing.T) {
	outcome, reason := Run("/dev/null")
	if outcome != Untested && (outcome != Failed || !strings.Contains(reason, "KVM_CREATE_VM: inappropriate ioctl")) {
		t.Errorf("%s: %s", outcome, reason)
	}
}

func TestRunOnThisMachine(t *testing.T) {
	if err := unix.Access("/dev/kvm", unix.R_OK|unix.W_OK); err != nil {
		t.Skip("this machine lends no /dev/kvm: ", err)
	}
	outcome, reason := Run("/dev/kvm")
	if outcome == Failed {
		t.Errorf("%s: %s", outcome, reason)
	}
	t.Logf("%s: %s", outcome, reason)
}
