// Package netns_test shows what applications see: sockets in namespaces and a
// cgroup of the test's own, with an agent in the test process, in any supported
// kernel. It needs root.
package netns_test

import (
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
