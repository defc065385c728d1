package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestNewerTables: an agent that cannot read the tables of a newer version ends with an error that
// names them. What is served goes on, and the agent of the newer version comes back.
func TestNewerTables(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	f := openFlows(t, h)
	before := h.Dump(changing...)
	s.Signal(unix.SIGKILL)
	_ = s.Wait() // killed
	pin := filepath.Join(datapath.Dir(h.BPFFS), "bl_flow")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Rename(pin, pin+"-2"))
	older := s.Launch()
	if err := older.Wait(); err == nil {
		t.Error("the agent has ended without an error")
	}
	for _, part := range []string{"bl_flow-2", "newer", "--cleanup"} {
		if !strings.Contains(older.Output(), part) {
			t.Errorf("the error lacks %q:\n%s", part, older.Output())
		}
	}
	f.check(t, h, "after the older agent")
	must(os.Rename(pin+"-2", pin))
	s.Start()
	f.check(t, h, "with the newer agent")
	lab.CompareDumps(t, before, h.Dump(changing...))
}
