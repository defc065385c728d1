package netns_test

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// dual is a Service of both families and two protocols.
var dual = lab.Service("dual", `{clusterIPs: [10.96.0.1, "fd96::1"], ports: [`+
	`{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}`)

var (
	dualTCP4 = ap("10.96.0.1:80")
	dualTCP6 = ap("[fd96::1]:80")
	dualUDP4 = ap("10.96.0.1:53")
	dualUDP6 = ap("[fd96::1]:53")
)

func applyDual(a *lab.Agent) {
	a.Apply(dual,
		lab.Slice("dual", "web:8080/TCP,dns:8080/UDP", backends4(3)...),
		lab.Slice("dual", "web:8080/TCP,dns:8080/UDP", backends6(3)...))
}

// TestConnect reaches every endpoint of the address's family, and no other, with
// each kind of socket.
func TestConnect(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	cases := []struct {
		name, network string
		to            netip.AddrPort
		want          []netip.Addr
	}{
		{"TCP IPv4", "tcp4", dualTCP4, backends4(3)},
		{"TCP IPv6", "tcp6", dualTCP6, backends6(3)},
		{"TCP mapped", "tcp6", dualTCP4, backends4(3)},
		{"UDP IPv4", "udp4", dualUDP4, backends4(3)},
		{"UDP IPv6", "udp6", dualUDP6, backends6(3)},
		{"UDP mapped", "udp6", dualUDP4, backends4(3)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			wantBalanced(t, h.Namespace, c.network, c.to, c.want...)
			wantBalanced(t, h.Pod, c.network, c.to, c.want...)
			s := h.Socket(c.network)
			if err := s.Connect(c.to); err != nil {
				t.Fatal(err)
			}
			peer, err := s.Peer()
			if want := shown(c.network, c.to); err != nil || peer != want {
				t.Errorf("getpeername() shows %v, %v, want %v", peer, err, want)
			}
		})
	}
}
