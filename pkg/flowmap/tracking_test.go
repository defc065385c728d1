package flowmap

import (
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestSetTracking: that nothing is tracked, or no rule looks at clients, holds for some seconds, that something
// is and one does until told otherwise.
func TestSetTracking(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	checkNone(t, New(m).SetTracking, &m.Entries.Tracking.NoneUntil)
	checkNone(t, New(m).SetRulesByClient, &m.Entries.Tracking.NoRulesUntil)
}

func checkNone(t *testing.T, set func(bool) error, until *uint32) {
	t.Helper()
	for _, some := range []bool{false, true} {
		if err := set(some); err != nil {
			t.Fatal(err)
		}
		now, err := bpf.Clock()
		if err != nil {
			t.Fatal(err)
		}
		// As bl_tracking_none and bl_route_shared.
		holds := func(after time.Duration) bool {
			return uint32((now+after)/time.Second) < *until
		}
		if got := holds(time.Second); got == some {
			t.Errorf("there are some: %v; in a second there are none: %v", some, got)
		}
		if holds(noneFor + time.Second) {
			t.Errorf("there are some: %v; later there are none", some)
		}
	}
}
