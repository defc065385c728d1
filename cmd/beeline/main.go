// Command beeline shows how this node's Services are served; called kubectl-beeline it is kubectl's
// plugin, which asks the nodes of a cluster.
package main

import (
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

func main() {
	// What packages log is for the agent's log: the command prints what it finds. SetOutput would
	// leave errors on standard error.
	klog.SetLogger(klog.New(nil))
	env := cli.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Now: time.Now}
	if filepath.Base(os.Args[0]) == cli.PluginName {
		os.Exit(cli.RunPlugin(env, os.Args[1:]...))
	}
	os.Exit(cli.Run(env, os.Args[1:]...))
}
