package packets_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// The ports that Services take at the addresses of node 1. Each one has a NodePort, too.
const (
	ownPort      = 5300 // by external IPs, balanced by Maglev
	refusingPort = 5301 // by external IPs, of a Service without endpoints
	closedPort   = 5302 // by load-balancer IPs, for clients in source ranges alone

	nodePorts        = 25000 // from each of these ports to its NodePort
	ownNodePort      = ownPort + nodePorts
	refusingNodePort = refusingPort + nodePorts
)

// claims returns Services whose external and load-balancer IPs are the addresses of node 1.
func (c *cluster) claims() (manifests []string) {
	at := fmt.Sprintf("%q, %q", nodeAddrs(1)[0], nodeAddrs(1)[1])
	const spec = "{type: LoadBalancer, clusterIPs: [%q, %q], allocateLoadBalancerNodePorts: false, %s" +
		" ports: [{name: t, port: %d, nodePort: %d}, {name: u, port: %[4]d, nodePort: %[5]d, protocol: UDP}]}"
	for i, s := range []struct {
		name, fields, status string
		port                 int
	}{
		{"own", "externalIPs: [" + at + "],", "", ownPort},
		{"refusing", "externalIPs: [" + at + "],", "", refusingPort},
		{"closed", `loadBalancerSourceRanges: ["192.0.2.0/24", "2001:db8::/64"],`,
			fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: %q}, {ip: %q}]}}", nodeAddrs(1)[0], nodeAddrs(1)[1]), closedPort},
	} {
		cluster := clusterIP(i + 1)
		manifests = append(manifests, lab.Service(s.name, fmt.Sprintf(spec, cluster[0], cluster[1], s.fields, s.port, s.port+nodePorts), s.status))
		for family := range 2 {
			if s.name != "refusing" {
				manifests = append(manifests, c.slice(s.name, family, []endpoint{local, remote}))
			}
		}
	}
	return manifests
}

// TestAnswersToTheNode: Services have ports of the node's own address by external and load-balancer
// IPs and NodePorts. What comes there to a connected socket of the node is its own, as in conntrack, a
// forged SYN too where it is to no NodePort; all else is the Service's, also where a process listens.
func TestAnswersToTheNode(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "off")
			c := newClusterFor(t, mode)
			c.serve(t, c.claims(), "--xdp", mode, "--algorithm", "maglev")
			serve(t, c.client, "outside", clientAddrs)
			tried := networks
			if !tier.All(t) {
				tried = []string{"tcp4", "udp6"} // each protocol and each family
			}
			for _, network := range tried {
				tcp := strings.HasPrefix(network, "tcp")
				for _, port := range []uint16{ownPort, ownNodePort} {
					listener := boundSocket(t, c.nodes[0].Namespace, network, port)
					if tcp {
						if err := listener.Listen(); err != nil {
							t.Fatal(err)
						}
					}
				}
				for _, port := range []uint16{ownPort, refusingPort, closedPort, ownNodePort} {
					asksSYN := port < nodePorts
					own, hello := connectFrom(t, c.nodes[0].Namespace, network, port, netip.AddrPortFrom(clientAddrs.of(network), backendPort))
					if want := netip.AddrPortFrom(nodeAddrs(1).of(network), port); hello.client != want {
						t.Fatalf("%s: the server sees %s, want %s, so this test proves nothing", network, hello.client, want)
					}
					if port == ownPort || port == ownNodePort {
						for range 5 {
							got, err := ask(c.other, network, netip.AddrPortFrom(nodeAddrs(1).of(network), port), "x")
							if err != nil || !strings.HasPrefix(got.name, "node") {
								t.Errorf("%s: a client of the Service gets %v, %v", network, got, err)
							}
						}
					}
					if tcp && asksSYN {
						c.forgeSYN(t, network, port, "TCPSYNChallenge") // RFC 5961, 4
					} else if port == closedPort {
						c.dropsSourcePort0(t, network)
					}
					answers := asked{name: "an answer", network: network, to: netip.AddrPortFrom(nodeAddrs(1).of(network), port), port: backendPort}
					c.explainAll(t, []*asked{&answers})
					if own := answers.said.Verdict == inspect.VerdictNoService; own != (asksSYN || !tcp) {
						t.Errorf("%s, port %d: %s is explained as %s", network, port, answers.name, answers.said.Verdict)
					}
					if err := goesOn(own, network); err != nil {
						t.Errorf("%s, the node's own from port %d: %v", network, port, err)
					}
					own.Close()
					lab.Eventually(t, "the Service has the port when the connection is over", func() bool {
						c.explainAll(t, []*asked{&answers})
						return answers.said.Verdict != inspect.VerdictNoService
					})
				}
			}
		})
	}
}

// forgeSYN sends node 1 a SYN with the addresses and ports of a connection from a port of its own to the
// client outside, and waits until its stack has it and counts so.
func (c *cluster) forgeSYN(t *testing.T, network string, port uint16, counter string) {
	t.Helper()
	forged := frame{
		from: netip.AddrPortFrom(clientAddrs.of(network), backendPort), to: netip.AddrPortFrom(nodeAddrs(1).of(network), port),
		protocol: unix.IPPROTO_TCP, flags: flagSYN, seq: 1000,
	}
	n := c.nodes[0].Namespace
	before, packet := tcpCount(t, n, counter), toMAC(forged.bytes(), c.macOf(t, n, uplink))
	sendUntil(t, "the stack has the forged SYN", func() error { return sendFrame(c.router, "node1", packet) }, func() bool {
		return tcpCount(t, n, counter) > before
	})
}

// tcpCount returns one of the kernel's counters of TCP in a namespace.
func tcpCount(t *testing.T, n *lab.Namespace, counter string) int {
	t.Helper()
	var lines []string
	err := n.Run(func() error {
		for _, file := range []string{"snmp", "netstat"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			lines = append(lines, strings.Split(string(text), "\n")...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// A line of names, and one of counts.
	for i, line := range lines {
		if at := slices.Index(strings.Fields(line), counter); strings.HasPrefix(line, "Tcp") && at >= 0 {
			count, err := strconv.Atoi(strings.Fields(lines[i+1])[at])
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	t.Fatalf("the kernel does not count %s", counter)
	return 0
}

// dropsSourcePort0: a datagram from source port 0, which answers nobody, does not reach a socket that is
// bound to the port.
func (c *cluster) dropsSourcePort0(t *testing.T, network string) {
	t.Helper()
	n := c.nodes[0]
	bound := boundSocket(t, n.Namespace, network, closedPort)
	defer bound.Close()
	forged := frame{
		from: netip.AddrPortFrom(otherClientAddrs.of(network), 0), to: netip.AddrPortFrom(nodeAddrs(1).of(network), closedPort),
		protocol: unix.IPPROTO_UDP, payload: "longer than a TCP header",
	}
	before, packet := eventCount(t, n, "source_range"), toMAC(forged.bytes(), c.macOf(t, n.Namespace, uplink))
	sendUntil(t, "the datagram is dropped, or arrives", func() error { return sendFrame(c.router, "node1", packet) }, func() bool {
		return eventCount(t, n, "source_range") > before || bound.Ready(0)
	})
	if bound.Ready(0) {
		t.Errorf("%s: a datagram from source port 0 has reached a socket of the node past the source ranges", network)
	}
}

// TestAnswersThatAreTracked: netfilter tracks connections, so it knows which packets are answers: to
// sockets of the node that are not connected, and to pods that it masquerades.
func TestAnswersThatAreTracked(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "off")
			c := newClusterFor(t, mode)
			c.serve(t, c.claims(), "--xdp", mode, "--algorithm", "maglev")
			serve(t, c.client, "outside", clientAddrs)
			serve(t, c.other, "outside", otherClientAddrs)
			n := c.nodes[0]
			for i, family := range []string{"ip", "ip6"} {
				rules := fmt.Sprintf(`table %[1]s pods {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		%[1]s saddr %[2]s %[1]s daddr != %[3]s masquerade;
	}
}`, family, podRangesOf(1)[i], podRanges[i])
				if _, err := n.Output("nft", rules); err != nil {
					t.Fatal(failure(err))
				}
			}
			n.Socket("udp4").SendTo("tracked", netip.AddrPortFrom(clientAddrs[0], backendPort))
			lab.Eventually(t, "the agent sees that connections are tracked", func() bool { return asksTracking(t, n) })
			for _, network := range networks {
				tcp := strings.HasPrefix(network, "tcp")
				outside := netip.AddrPortFrom(clientAddrs.of(network), backendPort)
				for _, port := range []uint16{ownPort, ownNodePort} {
					at := netip.AddrPortFrom(nodeAddrs(1).of(network), port)
					pod, hello := connectFrom(t, n.routed, network, port, outside)
					if hello.client != at {
						t.Fatalf("%s: the server sees %s, want %s, so this test proves nothing", network, hello.client, at)
					}
					if got, err := ask(c.other, network, at, "x"); err != nil || !strings.HasPrefix(got.name, "node") {
						t.Errorf("%s: a client of the Service gets %v, %v", network, got, err)
					}
					if tcp && port == ownPort {
						c.forgeSYN(t, network, port, "OutRsts") // to conntrack it is none of the connection
					}
					if err := goesOn(pod, network); err != nil {
						t.Errorf("%s, the pod from port %d: %v", network, port, err)
					}
				}
				if tcp {
					continue
				}
				for _, port := range []uint16{ownPort, refusingPort, closedPort, ownNodePort, refusingNodePort} {
					own := boundSocket(t, n.Namespace, network, port)
					err := own.SendTo("x", netip.AddrPortFrom(otherClientAddrs.of(network), backendPort))
					got, _, received := own.Receive()
					if err != nil || received != nil {
						t.Errorf("%s, a socket of port %d: %q, %v, %v", network, port, got, err, received)
					}
				}
			}
		})
	}
}
