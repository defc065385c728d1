// The command istio-iptables writes the rules of an Istio sidecar, as Istio's init container does.
package main

import (
	"os"

	"istio.io/istio/pkg/log"
	"istio.io/istio/tools/istio-iptables/pkg/cmd"
)

func main() {
	if err := cmd.GetCommand(log.DefaultOptions()).Execute(); err != nil {
		os.Exit(1)
	}
}
