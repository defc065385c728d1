package main

import (
	"context"
	"fmt"
	"io"

	"github.com/beeline-lb/beeline/pkg/kubeproxy"
)

// cleanupKubeProxy removes what a kube-proxy left and says what that was. With bestEffort what could not be removed
// is no error.
func cleanupKubeProxy(ctx context.Context, out io.Writer, bestEffort bool) error {
	report, err := kubeproxy.Cleanup(ctx)
	tell(out, report)
	if err != nil && bestEffort {
		fmt.Fprintln(out, "left for want of a way to remove it:", err)
		return nil
	}
	if err == nil && len(report.Removed) == 0 {
		fmt.Fprintln(out, "nothing of kube-proxy to remove")
	}
	return err
}

// leaveNetfilter removes Beeline's own rules and says what that was.
func leaveNetfilter(ctx context.Context, out io.Writer) error {
	report, err := kubeproxy.Leave(ctx)
	tell(out, report)
	return err
}

func tell(out io.Writer, report *kubeproxy.Report) {
	for _, line := range report.Removed {
		fmt.Fprintln(out, "removed", line)
	}
	for _, line := range report.Kept {
		fmt.Fprintln(out, "kept", line)
	}
}
