// Package packets_test shows what clients outside of a node see of its Services:
// hosts as namespaces, the agent as it is shipped, and packets on the wire. It
// needs root.
package packets_test

import (
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
