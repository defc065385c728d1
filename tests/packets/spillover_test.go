package packets_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// zonedService returns the manifests of nodes in zones of their own, and of a Service with a pod on each,
// whose connections stay in their zone until they spill over.
func (c *cluster) zonedService() []string {
	var list []string
	var endpoints [2][]string
	for _, n := range c.nodes {
		a := nodeAddrs(n.index)
		zone := fmt.Sprint("zone-", n.index)
		list = append(list, strings.Replace(nodeManifest(n.index, a[0], a[1]), "metadata: {",
			fmt.Sprintf("metadata: {labels: {topology.kubernetes.io/zone: %s}, ", zone), 1))
		for family := range endpoints {
			endpoints[family] = append(endpoints[family], fmt.Sprintf("{addresses: [%q], nodeName: %s, zone: %s, hints: {forZones: [{name: %s}]}}",
				n.routedAddrs()[family], n.name(), zone, zone))
		}
	}
	service := lab.Service("web", `{clusterIPs: [10.96.0.1, "fd96::1"], type: NodePort, ports: [{port: 80, nodePort: 30101}]}`)
	list = append(list, strings.Replace(service, "namespace: default", `namespace: default, annotations: {service.beeline.io/zone-spill-over: 20%}`, 1))
	for _, e := range endpoints {
		list = append(list, lab.SliceOf("web", fmt.Sprintf("%d/TCP", backendPort), e...))
	}
	return list
}

// reached opens connections to the Service by the ports of some nodes in turn, half of each family, and
// returns how many of each node's are with which pods.
func (c *cluster) reached(t *testing.T, connections int, by ...int) map[int]map[string]int {
	t.Helper()
	at := make(map[int]map[string]int)
	for i := range connections {
		for _, n := range by {
			if at[n] == nil {
				at[n] = make(map[string]int)
			}
			network := []string{"tcp4", "tcp6"}[i%2]
			_, hello := connect(t, c.client, network, netip.AddrPortFrom(nodeAddrs(n).of(network), 30101))
			at[n][strings.TrimSuffix(hello.name, "/routed")]++
		}
	}
	return at
}

// TestSpillOver: connections stay in their zone until its endpoint has more than its share of what the
// clients of all nodes have open; then a part goes to the other zones, also while the agent is away and
// after it is back, until their own clients want as much.
func TestSpillOver(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "waits until means of active connections have changed")
	c := newClusterOf(t, 3, false)
	c.serveAll(t)
	var agents []*agent
	for _, n := range c.nodes {
		agents = append(agents, startAgent(t, n, c.zonedService(), "--allowed-annotations", "service.beeline.io/zone-spill-over"))
	}
	eventually := func(n *node, metric string) {
		t.Helper()
		lab.Eventually(t, fmt.Sprintf("%s of %s", metric, n.name()), func() bool {
			page, err := n.metrics()
			return err == nil && strings.Contains(page, metric+"\n")
		})
	}
	// The metric tells what is wanted; the tables follow.
	inTables := func(endpoints int) {
		t.Helper()
		for _, to := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
			lab.Eventually(t, fmt.Sprintf("%d endpoints have a share of connections to %s", endpoints, to), func() bool {
				var list []struct{ Backends []struct{ Share float64 } }
				if err := json.Unmarshal([]byte(beeline(t, c.nodes[0], "explain", to, "-o", "json")), &list); err != nil {
					t.Fatal(err)
				}
				shares := 0
				for _, b := range list[0].Backends {
					if b.Share > 0 {
						shares++
					}
				}
				return shares == endpoints
			})
		}
	}
	c.reached(t, 4, 1, 2, 3)
	inTables(1)
	c.reached(t, 20, 1)
	eventually(c.nodes[0], "beeline_services_spilling_over 1")
	inTables(3)
	eventually(c.nodes[0], "beeline_spill_over_silent_nodes 0")
	spills := func(when string) {
		t.Helper()
		// So many that none of the three gets none by chance.
		if at := c.reached(t, 40, 1)[1]; at["node1"] == 0 || at["node2"] == 0 || at["node3"] == 0 {
			t.Errorf("%s, connections are with %v", when, at)
		}
	}
	spills("with more than its share")
	for _, n := range c.nodes[1:] {
		eventually(n, "beeline_services_spilling_over 0")
	}
	if said := beeline(t, c.nodes[0], "verify"); said != "Nothing found.\n" {
		t.Errorf("verify: %s", said)
	}
	for i, want := range []string{"any, by the shares, which zone spill-over gives", "and nothing spills over to them"} {
		if said := beeline(t, c.nodes[i], "explain", "10.96.0.1:80"); !strings.Contains(said, want) {
			t.Errorf("explain on node %d does not say %q:\n%s", i+1, want, said)
		}
	}
	agents[0].Signal(unix.SIGKILL)
	_ = agents[0].Wait() // killed
	spills("without an agent")
	agents[0].start()
	spills("with the next agent")

	c.reached(t, 140, 2, 3)
	for _, n := range c.nodes {
		eventually(n, "beeline_services_spilling_over 0")
	}
	inTables(1)
	if at := c.reached(t, 10, 1)[1]; at["node1"] != 10 {
		t.Errorf("with its share again, connections are with %v", at)
	}
}
