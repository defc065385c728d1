package model

import (
	"testing"
	"time"
)

func TestParseOutliers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Outliers{
		"off":                             {},
		"on":                              DefaultOutliers,
		"failures=3":                      {3, 30 * time.Second, 50},
		"time=1m, percent=100":            {5, time.Minute, 100},
		"failures=255,time=1h,percent=1":  {255, time.Hour, 1},
		"percent=10, failures=1, time=5s": {1, 5 * time.Second, 10},
	} {
		got, err := ParseOutliers(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := ParseOutliers(got.String()); err != nil || again != got {
			t.Errorf("%q is read as %+v, %v", got, again, err)
		}
	}
	for _, text := range []string{
		"", "yes", "5", "failures", "failures=0", "failures=256", "failures=-1", "failures=3,failures=4",
		"time=4s", "time=61m", "time=30", "percent=0", "percent=101", "failures=3,", "failures=3;time=30s",
	} {
		if got, err := ParseOutliers(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func TestEjection(t *testing.T) {
	t.Parallel()
	for times, want := range map[uint32]time.Duration{0: 30 * time.Second, 1: time.Minute, 6: 32 * time.Minute, 7: time.Hour, 1 << 31: time.Hour} {
		if got := DefaultOutliers.Ejection(times); got != want {
			t.Errorf("after %d times: %s, want %s", times, got, want)
		}
	}
	for _, c := range []struct {
		percent            uint8
		endpoints, ejected int
		want               bool
	}{
		{100, 1, 0, false}, {1, 2, 0, true}, {100, 2, 1, false}, {50, 3, 1, false}, {50, 4, 1, true}, {50, 4, 2, false},
		{100, 4, 2, true}, {100, 4, 3, false}, {10, 100, 9, true}, {10, 100, 10, false}, {100, 0, 0, false},
	} {
		if got := (Outliers{1, time.Minute, c.percent}).MayEject(c.endpoints, c.ejected); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
