// Package model_test runs the programs on random sequences of packets and compares what
// they do with a model: what a client and a backend may see of a flow, from its first
// packet until it is forgotten, whichever program and table it is in. It needs root.
package model_test

import (
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
