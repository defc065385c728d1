package verify_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// slowly is a Service with so many endpoints, each of which starts slowly.
func slowly(window string, endpoints int) []string {
	var addrs [2][]netip.Addr
	for i := range endpoints {
		addrs[0], addrs[1] = append(addrs[0], lab.Backend4(i+1)), append(addrs[1], lab.Backend6(i+1))
	}
	service := lab.Service("slow", `{clusterIPs: [10.96.0.1, "fd96::1"], ipFamilies: [IPv4, IPv6], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`)
	const ports = "t:8080/TCP,u:8080/UDP"
	return []string{
		strings.Replace(service, "namespace: default", "namespace: default, annotations: {service.beeline.io/slow-start: "+window+"}", 1),
		lab.Slice("slow", ports, addrs[0]...), lab.Slice("slow", ports, addrs[1]...),
	}
}

// TestSlowStart: an endpoint that has come gets a tenth of its share of connections at first, and has
// as much after a restart of the agent. That is no finding.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	n := serve(t, h, slowly("10s", 2))
	lab.Eventually(t, "two endpoints have started", func() bool { return slices.Equal(n.weights(t), []uint16{10, 10, 10, 10, 10, 10, 10, 10}) })
	n.Write("first.yaml", slowly("1h", 3)...)
	lab.Eventually(t, "the third endpoint starts", func() bool { return len(n.weights(t)) == 12 })
	for _, agent := range []string{"an agent", "no agent", "the next agent"} {
		switch agent {
		case "no agent":
			n.Signal(unix.SIGKILL)
			_ = n.Wait()
		case "the next agent":
			n.Standalone.Start()
		}
		n.wantNothing(t, agent)
		want := []uint16{1, 1, 1, 1, 10, 10, 10, 10, 10, 10, 10, 10}
		if got := n.weights(t); !slices.Equal(got, want) {
			t.Errorf("%s: weights %v, want %v", agent, got, want)
		}
		// Of 21 connections one goes there: of 420, 20, and 45 or more once in a million times.
		for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
			to := netip.MustParseAddrPort("10.96.0.1:80")
			if network[3] == '6' {
				to = netip.MustParseAddrPort("[fd96::1]:80")
			}
			count := make(map[netip.Addr]int)
			for range 420 {
				got, err := h.Reach(network, to)
				if err != nil {
					t.Fatalf("%s, %s: %v", agent, network, err)
				}
				count[got.Addr()]++
			}
			third := count[lab.Backend4(3)] + count[lab.Backend6(3)]
			if third == 0 || third > 45 || len(count) != 3 {
				t.Errorf("%s, %s: connections to %v", agent, network, count)
			}
		}
	}
}

// weights returns those of all backends, in order.
func (n *node) weights(t *testing.T) []uint16 {
	t.Helper()
	var weights []uint16
	for _, b := range n.backends(t) {
		weights = append(weights, b.Weight)
	}
	slices.Sort(weights)
	return weights
}
