// Package chart_test tests the Helm chart with helm itself: what it rejects, what it
// makes of values, and whether the agent of a pod that it makes serves, with the rights
// it is given and no others. Clusters are a real API server. It needs root.
package chart_test

import (
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
