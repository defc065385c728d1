package bpfmap

import (
	"testing"
	"time"
)

func TestShort(t *testing.T) {
	m := load(t, t.TempDir(), small)
	for _, want := range []int{0, 7, 3} {
		if err := m.SetShort(want); err != nil {
			t.Fatal(err)
		}
		if got, err := m.Short(); err != nil || got != want {
			t.Errorf("read %d, %v, want %d", got, err, want)
		}
	}
}

// TestRecentlyEvicted: what an agent has told is not taken for what the next one tells.
func TestRecentlyEvicted(t *testing.T) {
	m := load(t, t.TempDir(), small)
	begin := time.Unix(1000, 0)
	m.SetAgent(Agent{Started: begin})
	want := RecentlyEvicted{From: begin.Add(time.Second), To: begin.Add(time.Minute), Established: 3, HalfOpen: 4}
	if err := m.SetRecentlyEvicted(want); err != nil {
		t.Fatal(err)
	}
	if got, err := m.RecentlyEvicted(); err != nil || got != want {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
	m.SetAgent(Agent{Started: begin.Add(time.Hour)})
	if got, err := m.RecentlyEvicted(); err != nil || got != (RecentlyEvicted{}) {
		t.Errorf("of a former agent %+v, %v", got, err)
	}
}
