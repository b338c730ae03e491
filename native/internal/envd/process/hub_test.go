package process

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aenv/native/internal/envd/runclock"
)

// Who is alone with a command and reads on after minutes, as in a pager, has lost nothing; who never does is given up.
func TestTheOnlyReaderHasTenMinutes(t *testing.T) {
	for pause, lost := range map[time.Duration]bool{9 * time.Minute: false, 11 * time.Minute: true} {
		synctest.Test(t, func(t *testing.T) {
			h := hub{patience: NewService(nil, nil, &runclock.Clock{}).patience, history: history{total: new(atomic.Int64)}}
			sub, _ := h.subscribe(func() {}, 0)
			go func() {
				h.publish(stdout, make([]byte, subscriptionBytes))
				h.publish(stdout, []byte("last"))
			}()
			time.Sleep(pause)
			if _, dropped := sub.take(); dropped != lost {
				t.Errorf("after %v: dropped is %v", pause, dropped)
			}
		})
	}
}
