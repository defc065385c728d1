package packets_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestClientKnowsTheBackendToo: a client has a connection to a Service and one of its
// own to the endpoint that it got, both from one port. Each gets its own answers, and
// whichever came first goes on.
func TestClientKnowsTheBackendToo(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
	})
	port := uint16(40000)
	for _, network := range networks {
		for i, e := range []endpoint{local, remote} {
			service := nodePort(network, i+1)
			direct := netip.AddrPortFrom(c.addrsOf(e).of(network), backendPort)
			for _, order := range [][]netip.AddrPort{{service, direct}, {direct, service}} {
				port++
				first, _ := connectFrom(t, c.client, network, port, order[0])
				second, hello := connectFrom(t, c.client, network, port, order[1])
				if hello.name != e.server() {
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
}

// connectFrom is connect from a port that may be in use.
func connectFrom(t *testing.T, n *lab.Namespace, network string, port uint16, to netip.AddrPort) (*lab.Socket, greeting) {
	t.Helper()
	s := boundSocket(t, n, network, port)
	return s, begin(t, s, network, to)
}

// goesOn reports why a connection does not go on.
func goesOn(s *lab.Socket, network string) error {
	if strings.HasPrefix(network, "udp") {
		_, err := talkUDP(s, "again")
		return err
	}
	return echo(s, "again")
}
