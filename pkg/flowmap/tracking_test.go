package flowmap

import (
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestSetTracking: that nothing is tracked holds for some seconds, that something is
// until told otherwise.
func TestSetTracking(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	for _, some := range []bool{false, true} {
		if err := New(m).SetTracking(some); err != nil {
			t.Fatal(err)
		}
		now, err := bpf.Clock()
		if err != nil {
			t.Fatal(err)
		}
		// As bl_tracking_none.
		holds := func(after time.Duration) bool {
			return uint32((now+after)/time.Second) < m.Entries.Tracking.NoneUntil
		}
		if got := holds(time.Second); got == some {
			t.Errorf("connections are tracked: %v; in a second none is: %v", some, got)
		}
		if holds(untrackedFor + time.Second) {
			t.Errorf("connections are tracked: %v; later none is", some)
		}
	}
}
