package guest

import (
	"testing"
	"time"
)

// What is set and reseeded for real is tested where there is a machine to spare: in guestinit's.
func TestAClockThatStoodStillIsSetAndALateWordIsNotBelieved(t *testing.T) {
	for behind, wrong := range map[time.Duration]bool{
		time.Hour:               true,
		20 * time.Millisecond:   true,
		2 * time.Millisecond:    false,
		-20 * time.Millisecond:  false,
		-400 * time.Millisecond: false,
		-time.Minute:            true,
	} {
		if isWrong(behind) != wrong {
			t.Errorf("%v behind the host's: wrong is %t", behind, !wrong)
		}
	}
}
