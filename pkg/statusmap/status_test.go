package statusmap

import (
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/maptest"
)

func TestLimited(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	for _, want := range []int{0, 7, 3} {
		if err := New(m).SetLimited(want); err != nil {
			t.Fatal(err)
		}
		if got, err := New(m).Limited(); err != nil || got != want {
			t.Errorf("read %d, %v, want %d", got, err, want)
		}
	}
}

// TestRecentlyEvicted: figures of a former agent are not shown as those of the next one.
func TestRecentlyEvicted(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	begin := time.Unix(1000, 0)
	New(m).SetAgent(Agent{Started: begin})
	want := RecentlyEvicted{From: begin.Add(time.Second), To: begin.Add(time.Minute), Established: 3, HalfOpen: 4}
	if err := New(m).SetRecentlyEvicted(want); err != nil {
		t.Fatal(err)
	}
	if got, err := New(m).RecentlyEvicted(); err != nil || got != want {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
	New(m).SetAgent(Agent{Started: begin.Add(time.Hour)})
	if got, err := New(m).RecentlyEvicted(); err != nil || got != (RecentlyEvicted{}) {
		t.Errorf("of a former agent %+v, %v", got, err)
	}
}
