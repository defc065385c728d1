package packets_test

import (
	"net/netip"
	"testing"
)

// TestLab: without Beeline, the client reaches every server at its own address and
// is seen by its own.
func TestLab(t *testing.T) {
	t.Parallel()
	for name, withOverlay := range map[string]bool{"routes": false, "overlay": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, withOverlay)
			c.serveAll(t)
			for _, n := range c.nodes {
				for server, at := range map[string]addrs{
					"routed":  n.routedAddrs(),
					"bridged": n.bridgedAddrs(),
					"host":    nodeAddrs(n.index),
				} {
					for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
						got, err := ask(c.client, network, netip.AddrPortFrom(at.of(network), backendPort), "hello")
						if err != nil || got.name != n.name()+"/"+server || got.client.Addr() != clientAddrs.of(network) {
							t.Errorf("%s to %s of %s: %v, %v", network, server, n.name(), got, err)
						}
					}
				}
			}
		})
	}
}
