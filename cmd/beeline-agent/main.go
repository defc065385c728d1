// Command beeline-agent keeps the node's service tables true to the Services and
// EndpointSlices of a cluster or of a folder of manifests.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := newCommand(os.Stdout).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "beeline-agent:", config.ErrorText(err))
		os.Exit(1)
	}
}
