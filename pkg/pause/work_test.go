package pause

import (
	"testing"
	"time"
)

// TestWork: time that passes without work does not count, and work does.
func TestWork(t *testing.T) {
	slept := 200 * time.Millisecond
	if took := Work(func() { time.Sleep(slept) }); took >= slept {
		t.Errorf("a sleep of %v took %v of a CPU", slept, took)
	}
	want := 20 * time.Millisecond
	if took := Work(func() {
		for start := threadTime(); threadTime()-start < want; {
		}
	}); took < want {
		t.Errorf("work of %v took %v of a CPU", want, took)
	}
}
