package packets_test

import (
	"net/netip"
	"testing"
)

// TestMasqueradeAllInternalLocal: with --masquerade-all, clients of a ClusterIP get SNAT under
// internalTrafficPolicy: Local as under Cluster; only externalTrafficPolicy: Local keeps their address.
func TestMasqueradeAllInternalLocal(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return c.service(1, "hidden", "internalTrafficPolicy: Local, externalTrafficPolicy: Local,", []endpoint{local})
	}, "--masquerade-all")
	for _, network := range networks {
		for _, f := range frontends {
			got, err := ask(c.client, network, netip.AddrPortFrom(f.address(1).of(network), uint16(f.port(1))), "x")
			want := got.self.Addr()
			if f.name == "ClusterIP" {
				want = nodeAddrs(1).of(network)
			}
			if err != nil || got.client.Addr() != want {
				t.Errorf("%s by the %s: %s is seen, want %s: %v", network, f.name, got.client, want, err)
			}
		}
	}
}
