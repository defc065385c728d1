package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestInternalClients: a client that the agent takes for a pod of this node, by the device
// that its packets come in by, reaches endpoints on other nodes under
// externalTrafficPolicy Local; others get no answer, whatever their address.
func TestInternalClients(t *testing.T) {
	t.Parallel()
	far := func(c *cluster) []string {
		return c.service(1, "far", "externalTrafficPolicy: Local,", []endpoint{remote})
	}
	for _, tc := range []struct {
		name  string
		flags []string
		// internal are the clients that count as pods, of: client, routed, bridged.
		internal []string
	}{
		{"none", []string{"--cluster-cidr", "10.99.0.0/16"}, nil},
		{"ClusterCIDR", []string{"--cluster-cidr", "10.1.0.0/24,fd01::/64"}, nil},
		{"BridgeInterface", []string{"--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cni0"}, []string{"bridged"}},
		{"InterfaceNamePrefix", []string{"--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "vethr"}, []string{"routed"}},
		{"prefix of an uplink", []string{"--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "up"}, []string{"client"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, tc.name == "BridgeInterface" || tc.name == "ClusterCIDR")
			// The devices of pods are taken for ones that clients are behind.
			c, _ := serveCluster(t, far, append([]string{
				"--socket-lb", "host-namespace-only", "--devices", uplink + ",cni0,vethrouted"}, tc.flags...)...)
			clients := map[string]*lab.Namespace{"client": c.client, "routed": c.podOf(local), "bridged": c.podOf(otherLocal)}
			for _, network := range networks {
				for _, f := range frontends[1:] {
					to := netip.AddrPortFrom(f.address(1).of(network), uint16(f.port(1)))
					for name, client := range clients {
						if err := c.checkInternal(client, network, to, slices.Contains(tc.internal, name)); err != nil {
							t.Errorf("%s from %s to the %s: %v", network, name, f.name, err)
						}
					}
				}
			}
		})
	}
}

// checkInternal asks for a Service whose endpoint is on another node.
func (c *cluster) checkInternal(client *lab.Namespace, network string, to netip.AddrPort, internal bool) error {
	if !internal {
		if err := c.silent(client, network, to); !errors.Is(err, lab.ErrNothing) {
			return fmt.Errorf("answered: %w, want no answer", err)
		}
		return nil
	}
	got, err := ask(client, network, to, "payload")
	if err == nil && got.name != remote.server() {
		err = fmt.Errorf("reached %s, want %s", got.name, remote.server())
	}
	return err
}
