package pause

import (
	"testing"
	"time"
)

// TestWork: time that passes without work does not count, and work does, on whichever thread.
func TestWork(t *testing.T) {
	slept := 200 * time.Millisecond
	if took := Work(func() { time.Sleep(slept) }); took >= slept {
		t.Errorf("a sleep of %v took %v of a CPU", slept, took)
	}
	if took := Work(work); took < worked {
		t.Errorf("work of %v took %v of a CPU", worked, took)
	}
	var inner time.Duration
	outer := Work(func() {
		Elsewhere(work)
		inner = Work(func() { Elsewhere(func() { work(); Elsewhere(work) }) })
	})
	if inner < 2*worked || outer < 3*worked || outer < inner+worked {
		t.Errorf("work of %v on other threads took %v of a CPU, and with another %v %v", 2*worked, inner, worked, outer)
	}
	Elsewhere(work) // is nobody's
	if took := Work(func() {}); took >= worked {
		t.Errorf("no work took %v of a CPU", took)
	}
}

// TestLaps: each lap is that of its own work, without sleep.
func TestLaps(t *testing.T) {
	lap, end := Laps()
	defer end()
	slept := 200 * time.Millisecond
	time.Sleep(slept)
	if took := lap(); took >= slept {
		t.Errorf("a sleep of %v took %v of a CPU", slept, took)
	}
	work()
	if took := lap(); took < worked {
		t.Errorf("work of %v took %v of a CPU", worked, took)
	}
	if took := lap(); took >= worked {
		t.Errorf("a lap without work took %v of a CPU", took)
	}
}

const worked = 20 * time.Millisecond

// work takes so much CPU time.
func work() {
	for start := threadTime(); threadTime()-start < worked; {
	}
}
