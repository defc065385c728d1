// Command beeline shows how this node's Services are served.
package main

import (
	"io"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

func main() {
	// What the agent's packages log is for its own log: the command prints what it finds.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	env := cli.Env{Out: os.Stdout, Err: os.Stderr, Now: time.Now}
	os.Exit(cli.Run(env, os.Args[1:]...))
}
