package interrupt

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// nohupEnv is set in the process that TestNohup starts.
const nohupEnv = "BEELINE_INTERRUPT_NOHUP"

// TestNohup: a program that nohup has started outlives the terminal.
func TestNohup(t *testing.T) {
	under := os.Getenv(nohupEnv) != ""
	if got := slices.Contains(Signals(), os.Signal(unix.SIGHUP)); got == under {
		t.Errorf("started by nohup: %t, ends with the terminal: %t", under, got)
	}
	if under {
		return
	}
	cmd := exec.Command("nohup", os.Args[0], "-test.run=^TestNohup$")
	cmd.Env = append(os.Environ(), nohupEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
