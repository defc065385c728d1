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
	// balancer is set when the task brings a load balancer of its own.
	balancer bool
}

var tasks = map[string]task{
	"e2e":        {short: "Run upstream's tests of the network", run: e2e},
	metalLBTask:  {short: "Have MetalLB announce load balancers, whose nodes and endpoints go", run: metalLB, balancer: true},
	"migrate":    {short: "Replace kube-proxy by Beeline and go back, under traffic", run: migrate},
	"plugin":     {short: "Ask all nodes by kubectl beeline, then without two that do not answer", run: plugin},
	policyTask:   {short: "Try NetworkPolicies, on sockets and on packets", run: policy},
	powerCutTask: {short: "Cut the power of a node under traffic, and count what fails in the minute after", run: powerCut},
	"restart":    {short: "Restart the add-on that connects the pods, under traffic", run: restart},
	"rollout":    {short: "Replace the pods behind a load balancer, under traffic", run: rollout},
	soakTask:     {short: "Disturb the cluster in every way for hours, under traffic", run: soak},
	"upgrade":    {short: "Upgrade Beeline and roll back, under traffic", run: upgrade},
	"up":         {short: "Boot a cluster and keep it until interrupted", run: up},
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
