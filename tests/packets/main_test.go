// Package packets_test shows what clients outside of a node see of its Services:
// hosts as namespaces, the agent as it is shipped, and packets on the wire. It
// needs root.
package packets_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == sandboxed {
		fmt.Fprintln(os.Stderr, runSandboxed(os.Args[2:]))
		os.Exit(1)
	}
	os.Exit(lab.Main(m))
}
