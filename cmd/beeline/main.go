// Command beeline shows how this node's Services are served; called kubectl-beeline it is kubectl's
// plugin, which asks the nodes of a cluster.
package main

import (
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

func main() {
	// What the agent's packages log is for its own log: the command prints what it finds.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	env := cli.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Now: time.Now}
	if filepath.Base(os.Args[0]) == cli.PluginName {
		os.Exit(cli.RunPlugin(env, os.Args[1:]...))
	}
	os.Exit(cli.Run(env, os.Args[1:]...))
}
