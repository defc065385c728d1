// Command beeline shows how this node's Services are served; called kubectl-beeline it is kubectl's
// plugin, which asks the nodes of a cluster, and called kubectl_complete-beeline what completes the
// plugin's command lines.
package main

import (
	"context"
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
	run := cli.Run
	switch filepath.Base(os.Args[0]) {
	case cli.PluginName:
		run = cli.RunPlugin
	case cli.CompletionName:
		run = cli.RunPluginCompletion
	}
	os.Exit(run(context.Background(), env, os.Args[1:]...))
}
