package verify

import (
	"strings"
	"testing"
	"time"
)

// TestClock: a clock that differs from the API server's by more than a few seconds is a finding.
func TestClock(t *testing.T) {
	for _, tc := range []struct {
		ahead time.Duration
		want  string
	}{
		{0, ""}, {9 * time.Second, ""}, {-9 * time.Second, ""},
		{time.Hour, "1h0m0s ahead of"}, {-90 * time.Second, "1m30s behind"},
	} {
		m := &machine{MachineChecker: &MachineChecker{ClockAhead: func() (time.Duration, bool) { return tc.ahead, true }}}
		m.clock()
		if tc.want == "" && len(m.list) != 0 || tc.want != "" && (len(m.list) != 1 || !strings.Contains(m.list[0].What, tc.want)) {
			t.Errorf("%v: found %+v, want %q", tc.ahead, m.list, tc.want)
		}
	}
	for name, ahead := range map[string]func() (time.Duration, bool){
		"manifests": nil, "no answer yet": func() (time.Duration, bool) { return 0, false },
	} {
		m := &machine{MachineChecker: &MachineChecker{ClockAhead: ahead}}
		if m.clock(); len(m.list) != 0 {
			t.Errorf("%s: found %+v", name, m.list)
		}
	}
}
