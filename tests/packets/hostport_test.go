package packets_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

// mappedPort is a port of node 1 that portmap leads to a pod; takenPort, too, is the NodePort of a Service
// with another endpoint.
const (
	mappedPort = 8088
	takenPort  = 30102
)

// hostPortWays are how the rules of portmap come to be: its backend, and the iptables that it calls.
var hostPortWays = []struct{ name, backend, iptables string }{
	{"iptables-nft", "iptables", "nft"},
	{"iptables-legacy", "iptables", "legacy"},
	{"nftables", "nftables", "nft"},
}

// TestHostPort: a hostPort of the CNI plugin portmap leads to its pod, from everywhere, beside Services that
// have the same pod for an endpoint, also without an agent. A NodePort of the same number goes before it.
func TestHostPort(t *testing.T) {
	tier.Slow(t, "builds a CNI plugin")
	t.Parallel()
	for i, way := range hostPortWays {
		for name, flags := range map[string][]string{"sockets": nil, "packets": podFlags} {
			t.Run(way.name+" "+name, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, (i == 0) == (flags == nil))
				c, a := serveCluster(t, func(c *cluster) []string {
					return append(c.service(1, "web", "", []endpoint{local}), c.service(2, "taken", "", []endpoint{otherLocal})...)
				}, flags...)
				c.mapPorts(t, way.backend, way.iptables)
				c.checkHostPort(t)
				c.checkHostPortBesideNodePort(t)
				open := map[string]*lab.Socket{}
				for _, network := range networks {
					open[network], _ = connect(t, c.client, network, netip.AddrPortFrom(nodeAddrs(1).of(network), mappedPort))
				}
				a.Signal(unix.SIGKILL)
				_ = a.Wait()
				c.checkHostPort(t) // without an agent
				a.start()
				c.checkHostPort(t)
				for network, s := range open {
					if err := goesOn(s, network); err != nil {
						t.Errorf("%s over a restart: %v", network, err)
					}
				}
			})
		}
	}
}

// mapPorts runs portmap as a runtime does for the routed pod of node 1.
func (c *cluster) mapPorts(t *testing.T, backend, iptables string) {
	t.Helper()
	lab.Need(t, "nft", "iptables-nft", "iptables-legacy")
	dir, err := programs.CNI.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, pod := c.nodes[0], c.podOf(local).Populate()
	ports := ""
	for _, port := range []int{mappedPort, takenPort} {
		for _, protocol := range []string{"tcp", "udp"} {
			ports += fmt.Sprintf(`, {"hostPort": %d, "containerPort": %d, "protocol": %q}`, port, backendPort, protocol)
		}
	}
	at := n.routedAddrs()
	config := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "type": "portmap", "backend": %q, "capabilities": {"portMappings": true},
		"runtimeConfig": {"portMappings": [%s]},
		"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/proc/%d/ns/net"}],
			"ips": [{"address": "%s/32", "interface": 0}, {"address": "%s/128", "interface": 0}]}}`, backend, ports[2:], pod.PID(), at[0], at[1])
	n.shell(t, fmt.Sprintf("PATH=%s:$PATH CNI_COMMAND=ADD CNI_CONTAINERID=pod CNI_NETNS=/proc/%d/ns/net CNI_IFNAME=eth0 CNI_PATH=%s %s <<'EOF'\n%s\nEOF",
		lab.IPTables(t, iptables), pod.PID(), dir, filepath.Join(dir, "portmap"), config))
}

// checkHostPort asks the hostPort and the Service of its pod from everywhere.
func (c *cluster) checkHostPort(t *testing.T) {
	t.Helper()
	loopback := parseAddrs("127.0.0.1", "::1")
	for _, network := range networks {
		at := netip.AddrPortFrom(nodeAddrs(1).of(network), mappedPort)
		for from, n := range map[string]*lab.Namespace{
			"outside": c.client, "the other node": c.nodes[1].Namespace, "the node": c.nodes[0].Namespace,
			"the pod": c.podOf(local), "another pod": c.podOf(otherLocal), "a pod elsewhere": c.podOf(remote),
		} {
			wants := map[netip.AddrPort]endpoint{
				at:                   local,
				nodePort(network, 1): local,
				netip.AddrPortFrom(clusterIP(1).of(network), 80):        local,
				netip.AddrPortFrom(nodeAddrs(1).of(network), takenPort): otherLocal,
			}
			if from == "the node" && network[3] == '4' { // the kernel routes no ::1 elsewhere
				wants[netip.AddrPortFrom(loopback.of(network), mappedPort)] = local
			}
			if from == "the other node" || from == "a pod elsewhere" {
				delete(wants, netip.AddrPortFrom(clusterIP(1).of(network), 80)) // its node has no agent
			}
			for to, want := range wants {
				got, err := ask(n, network, to, "x")
				if err != nil || got.name != want.server() {
					t.Errorf("%s from %s to %s: reached %v, error %v, want %s", network, from, to, got, err, want.server())
				}
				if from == "outside" && err == nil && got.client.Addr() != got.self.Addr() {
					t.Errorf("%s from %s to %s: the pod sees %s, want %s", network, from, to, got.client, got.self)
				}
			}
		}
	}
}

// checkHostPortBesideNodePort connects to the hostPort and to a NodePort with the same endpoint from one source port.
func (c *cluster) checkHostPortBesideNodePort(t *testing.T) {
	t.Helper()
	port := uint16(41000)
	for _, network := range networks {
		host, service := netip.AddrPortFrom(nodeAddrs(1).of(network), mappedPort), nodePort(network, 1)
		for _, order := range [][]netip.AddrPort{{host, service}, {service, host}} {
			port++
			first, _ := connectFrom(t, c.client, network, port, order[0])
			second, hello := connectFrom(t, c.client, network, port, order[1])
			if hello.name != local.server() {
				t.Errorf("%s to %s after %s: reached %s", network, order[1], order[0], hello.name)
			}
			for _, s := range []*lab.Socket{first, second} {
				if err := goesOn(s, network); err != nil {
					t.Errorf("%s to %s and then to %s from one port: %v", network, order[0], order[1], err)
				}
			}
		}
	}
}
