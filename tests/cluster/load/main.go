// Command load is both ends of the traffic that tests of a cluster watch: a server
// that says who asked whom, and a client that keeps count of what went wrong.
//
//	load serve --grace 15s
//	load run --long 100 --rate 50 --targets http://10.96.0.20,http://[fd98:96::20]
//	load ask --targets http://10.96.0.20,udp://10.96.0.20:80
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "load", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(newServe(), newRun(), newAsk())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}
