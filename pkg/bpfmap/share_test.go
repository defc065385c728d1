package bpfmap

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// oneCPUEnv is set in a process that may use one CPU alone.
const oneCPUEnv = "BEELINE_TEST_ONE_CPU"

// TestCPUs: tables have room for what all CPUs of the machine keep free, also when the agent may use
// one of them alone, as with a cpuset.
func TestCPUs(t *testing.T) {
	if os.Getenv(oneCPUEnv) != "" {
		fmt.Printf("%d of %d CPUs\n", runtime.NumCPU(), CPUs())
		return
	}
	all := runtime.NumCPU()
	if all == 1 {
		t.Skip("needs two CPUs")
	}
	var first unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &first))
	for cpu, n := 0, 0; n < all; cpu++ {
		if first.IsSet(cpu) {
			if n++; n > 1 {
				first.Clear(cpu)
			}
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestCPUs$")
	cmd.Env = append(os.Environ(), oneCPUEnv+"=1")
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must(t, unix.SchedSetaffinity(0, &first))
	out, err := cmd.Output()
	must(t, err)
	var usable, counted int
	if _, err := fmt.Sscanf(string(out), "%d of %d CPUs", &usable, &counted); err != nil || usable != 1 || counted < all {
		t.Errorf("a process with one of %d CPUs says: %s%v", all, out, err)
	}
}
