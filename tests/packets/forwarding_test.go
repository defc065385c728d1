package packets_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/tier"
)

// TestForwardingOfAll: the kernel forwards IPv6 packets where the setting of all devices says so, whatever the device's
// own says, which systemd-networkd has at 0; so endpoints of this node and of others answer.
func TestForwardingOfAll(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "off")
			c := newXDPCluster(t, false)
			c.nodes[0].SetSysctl("ipv6/conf/"+uplink+"/forwarding", "0")
			c.serve(t, append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...), "--xdp", mode)
			for _, network := range []string{"tcp6", "udp6"} {
				c.wantGreeting(t, network, nodePort(network, 1), greeting{local.server(), netip.AddrPortFrom(clientAddrs.of(network), 0)})
				c.wantGreeting(t, network, nodePort(network, 2), greeting{remote.server(), netip.AddrPortFrom(nodeAddrs(1).of(network), 0)})
			}
			if said := beeline(t, c.nodes[0], "verify"); strings.Contains(said, "forwarding") {
				t.Errorf("verify says:\n%s", said)
			}
			for port := 1; port <= 2; port++ {
				to := nodePort("tcp6", port)
				if said := beeline(t, c.nodes[0], "explain", "--from", clientAddrs[1].String(), to.String()); strings.Contains(said, "dropped") {
					t.Errorf("of %s is said:\n%s", to, said)
				}
			}
		})
	}
}
