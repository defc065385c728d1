package conntrack_test

import (
	"os"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
