package verify

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/setup"
)

// TestClock: a clock that differs from the API server's by more than a few seconds is a finding. The
// server is asked once a minute, and again after an error.
func TestClock(t *testing.T) {
	for _, tc := range []struct {
		ahead time.Duration
		want  string
	}{
		{0, ""}, {9 * time.Second, ""}, {-9 * time.Second, ""},
		{time.Hour, "1h0m0s ahead of"}, {-90 * time.Second, "1m30s behind"},
	} {
		asked := 0
		answer := errors.New("no answer")
		m := &machine{Checker: &Checker{source: setup.Services{ClockAhead: func(context.Context) (time.Duration, error) {
			asked++
			return tc.ahead, answer
		}}}}
		if err := m.clock(t.Context()); !errors.Is(err, answer) || len(m.list) != 0 {
			t.Errorf("without an answer: %v, %+v", err, m.list)
		}
		answer = nil
		for range 3 {
			m.list = nil
			if err := m.clock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if tc.want == "" && len(m.list) != 0 || tc.want != "" && (len(m.list) != 1 || !strings.Contains(m.list[0].What, tc.want)) {
			t.Errorf("%v: found %+v, want %q", tc.ahead, m.list, tc.want)
		}
		if asked != 2 {
			t.Errorf("asked %d times, want 2", asked)
		}
		for _, f := range m.list {
			f.explain(true)
			if f.Why == "" || f.Fix == "" {
				t.Errorf("finding %+v has no explanation", f)
			}
		}
	}
	if m := (&machine{Checker: new(Checker)}); m.clock(t.Context()) != nil || len(m.list) != 0 {
		t.Errorf("manifests have no clock: %+v", m.list)
	}
}
