// Package live_test looks at the live views, beeline top and the web page, as users do, while
// connections are made.
package live_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/lab"
)

// asCommandVariable makes the test binary the beeline command.
const asCommandVariable = "BEELINE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommandVariable) != "" {
		os.Exit(cli.Run(context.Background(), cli.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Now: time.Now}, os.Args[1:]...))
	}
	os.Exit(lab.Main(m))
}
