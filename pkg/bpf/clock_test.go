package bpf_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// clockVariable has the test binary print the clock.
const clockVariable = "BEELINE_TEST_CLOCK"

// TestClockOfPrograms: a process in a time namespace, of a container that was restored, reads the clock that the programs
// stamp with, which no namespace changes.
func TestClockOfPrograms(t *testing.T) {
	if os.Getenv(clockVariable) != "" {
		for _, read := range []func() (time.Duration, error){bpf.Clock, bpf.EventClock} {
			clock, err := read()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println(int64(clock))
		}
		return
	}
	if _, err := os.Stat("/proc/self/ns/time"); err != nil {
		t.Skip("the kernel has no time namespaces")
	}
	if os.Getuid() != 0 {
		t.Skip("a time namespace needs root")
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip(err)
	}
	before, err := bpf.Clock()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--time", "--monotonic", "864000", "--fork", self, "-test.run", "^TestClockOfPrograms$")
	cmd.Env = append(os.Environ(), clockVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after, err := bpf.EventClock()
	if err != nil {
		t.Fatal(err)
	}
	var coarse, exact time.Duration
	if _, err := fmt.Sscan(string(out), (*int64)(&coarse), (*int64)(&exact)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if coarse < before || coarse > after || exact < before || exact > after {
		t.Errorf("in a time namespace ten days ahead the clocks are %v and %v, want %v to %v", coarse, exact, before, after)
	}
}
