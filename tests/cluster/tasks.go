package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// task is something to do with a cluster that runs.
type task struct {
	short string
	run   func(context.Context, *cluster) error
}

var tasks = map[string]task{
	"e2e":     {"Run upstream's tests of the network", e2e},
	"migrate": {"Replace kube-proxy by Beeline and go back, under traffic", migrate},
	"plugin":  {"Ask all nodes by kubectl beeline, then without two that do not answer", plugin},
	"rollout": {"Replace the pods behind a load balancer, under traffic", rollout},
	soakTask:  {"Disturb the cluster in every way for hours, under traffic", soak},
	"upgrade": {"Upgrade Beeline and roll back, under traffic", upgrade},
	"up":      {"Boot a cluster and keep it until interrupted", up},
}

// up keeps the cluster until the user interrupts.
func up(ctx context.Context, c *cluster) error {
	fmt.Printf(`
    export KUBECONFIG=%s PATH=$PATH:%s
    kubectl get pods --all-namespaces --output=wide

In a node:   nsenter --all --target PID
`, c.credential("kubeconfig.conf"), c.Programs.Node)
	for _, n := range c.nodes {
		fmt.Printf("    %s   %d\n", nodeName(n.index), n.pid())
	}
	fmt.Printf("Logs:        %s\nInterrupt to take it all down.\n", filepath.Clean(c.logs))
	<-ctx.Done()
	return nil
}
