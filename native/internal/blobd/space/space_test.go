package space

import (
	"strings"
	"testing"

	"aenv/native/internal/blobd/fault"
)

func TestTheReserveFollowsTheSizeOfTheDisk(t *testing.T) {
	for total, want := range map[uint64]uint64{4 << 20: 1 << 30, 20 << 30: 1 << 30, 100 << 30: 5 << 30, 4 << 40: 10 << 30} {
		if got := DefaultReserve(total); got != want {
			t.Errorf("of %d bytes %d are kept, want %d", total, got, want)
		}
	}
}

func TestTheDiskIsLookedAtInSteps(t *testing.T) {
	folder := t.TempDir()
	guard := NewGuard(folder)
	looks := 0
	reserve := uint64(0)
	guard.ReserveBytes = func(uint64) uint64 {
		looks++
		return reserve
	}
	for range 64 {
		if err := guard.Room(1 << 20); err != nil {
			t.Fatal(err)
		}
	}
	if looks != 4 {
		t.Errorf("64 MiB took %d looks at the disk, want 4", looks)
	}
	reserve = 1 << 62
	if err := guard.Room(stepBytes); fault.KindOf(err) != fault.Exhausted || !strings.Contains(err.Error(), folder) {
		t.Errorf("got %v, want fault.Exhausted with the folder's name", err)
	}
	if err := guard.Check(); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("got %v, want fault.Exhausted", err)
	}
}
