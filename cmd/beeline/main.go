// Command beeline shows how this node's Services are served.
package main

import (
	"os"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

func main() {
	env := cli.Env{Out: os.Stdout, Err: os.Stderr, Now: time.Now}
	os.Exit(cli.Run(env, os.Args[1:]...))
}
