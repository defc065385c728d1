package packets_test

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestSandboxFound: a pod whose sockets are not seen is found by what it sends: from then on its packets
// are served at its device, a port of a bridge or one with a route, and endpoints see the pod's own
// address. Connections that began before go on, with the next agent, too. Sockets outside of the served
// cgroup stand in for those of a sandbox.
func TestSandboxFound(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "clsact")
			c, a := serveCluster(t, (*cluster).podServices, "--tc-mode", mode, "--cgroup-root", lab.NewCgroup(t))
			old := make(map[*lab.Socket]string)
			for _, at := range []endpoint{local, otherLocal} {
				for _, network := range networks {
					for i, set := range podSets[:4] {
						s, hello := connectFound(t, c.podOf(at), network, netip.AddrPortFrom(clusterIP(i+1).of(network), 80))
						if hello.name != set.endpoints[0].server() {
							t.Fatalf("%s from %s reached %s, want %s", network, at.server(), hello.name, set.endpoints[0].server())
						}
						old[s] = network
					}
				}
			}
			check := func(when string) {
				t.Helper()
				for s, network := range old {
					if err := goesOn(s, network); err != nil {
						t.Errorf("%s from before, %s: %v", network, when, err)
					}
				}
				for _, at := range []endpoint{local, otherLocal} {
					c.checkPod(t, at)
				}
			}
			for _, at := range []endpoint{local, otherLocal} {
				pod := c.podOf(at)
				lab.Eventually(t, "packets of "+at.server()+" are served at its device", func() bool {
					got, err := ask(pod, "tcp4", netip.AddrPortFrom(clusterIP(3)[0], 80), "x")
					return err == nil && got.client.Addr() == got.self.Addr()
				})
			}
			for _, at := range []endpoint{local, otherLocal} {
				client, service := c.addrsOf(at)[1].String(), netip.AddrPortFrom(clusterIP(4)[1], 80)
				lab.Eventually(t, "beeline explain knows "+at.server(), func() bool {
					// The node has forgotten the neighbor when its probes were not answered in time.
					_, err := ask(c.podOf(at), "tcp6", service, "x")
					said := beeline(t, c.nodes[0], "explain", "--from", client, service.String())
					return err == nil && strings.Contains(said, "a pod of this node, "+client+", whose sockets the kernel does not see")
				})
			}
			if said := beeline(t, c.nodes[0], "status"); !strings.Contains(said, "are served at 2 devices") {
				t.Errorf("beeline status says:\n%s", said)
			}
			check("with the agent that found the pods")
			a.Signal(unix.SIGKILL)
			_ = a.Wait() // killed
			check("without an agent")
			a.start()
			check("with the next agent")
			if said := beeline(t, c.nodes[0], "verify"); strings.Contains(said, "machine: device") {
				t.Errorf("beeline verify says:\n%s", said)
			}
		})
	}
}

// connectFound is connect from a pod that is being found: a datagram on its way to a device is lost while
// the kernel adds the qdisc clsact there.
func connectFound(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort) (s *lab.Socket, hello greeting) {
	t.Helper()
	if !strings.HasPrefix(network, "udp") {
		return connect(t, n, network, to)
	}
	s = n.Socket(network)
	if err := s.Connect(to); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, network+" to "+to.String()+" is answered", func() (answered bool) {
		var err error
		hello, err = talkUDP(s, "again")
		return err == nil
	})
	return s, hello
}

// TestSandboxFoundInAFlood: while a pod sends packets from forged addresses to a Service, another pod
// whose sockets are not seen is found all the same.
func TestSandboxFoundInAFlood(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "sends hundreds of thousands of packets")
	c, _ := serveCluster(t, (*cluster).podServices, "--cgroup-root", lab.NewCgroup(t))
	node := c.nodes[0]
	for _, device := range []string{"all", "cni0"} {
		node.SetSysctl("ipv4/conf/"+device+"/rp_filter", "0")
	}
	f := newFlooder(t, node.bridged, "eth0", node.Namespace, "cni0")
	var stop atomic.Bool
	ended := make(chan error)
	go func() {
		var err error
		for !stop.Load() && err == nil {
			err = f.flood("udp4", netip.AddrPortFrom(clusterIP(4)[0], 80), 1000)
		}
		ended <- err
	}()
	lab.Eventually(t, "packets from more addresses are translated than are looked for", func() bool {
		return eventCount(t, node, "packet_translated") > 10_000
	})
	lab.Eventually(t, "the other pod is found", func() bool {
		got, err := ask(node.routed, "tcp4", netip.AddrPortFrom(clusterIP(3)[0], 80), "x")
		return err == nil && got.client.Addr() == got.self.Addr()
	})
	stop.Store(true)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if said := beeline(t, node, "status"); !strings.Contains(said, "are served at 1 device\n") {
		t.Errorf("beeline status says:\n%s", said)
	}
}
