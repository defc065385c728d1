package netns_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// sctpPorts are those of a Service of SCTP and of its NodePort.
const (
	sctpPort     = 80
	sctpNodePort = 30080
)

// TestSCTPSockets: associations of the kernel's own SCTP, from outside, reach an endpoint in a pod, one that is
// a process of the node, and one elsewhere, which sees the node; data goes both ways, and the client sees the
// Service's address.
func TestSCTPSockets(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.SetSysctl("ipv4/ip_forward", "1")
	h.SetSysctl("ipv6/conf/all/forwarding", "1")
	elsewhere := map[int]string{unix.AF_INET: "192.0.2.3/24", unix.AF_INET6: "2001:db8::3/64"}
	for _, cidr := range elsewhere {
		h.Outside.AddAddr("node", cidr)
	}
	for cidr, via := range map[string]netip.Addr{"10.96.0.0/16": lab.Node4, "fd96::/112": lab.Node6} {
		h.Outside.AddRoute(netip.MustParsePrefix(cidr), via, "node")
	}
	a := h.Serve(lab.AgentOptions{Devices: []string{lab.Uplink}, ServiceRanges: serviceRanges})
	for i, e := range []struct {
		name     string
		n        *lab.Namespace
		ip4, ip6 netip.Addr
	}{
		{"pod", h.Pod, lab.Pod4, lab.Pod6},
		{"host", h.Namespace, lab.Backend4(1), lab.Backend6(1)},
		{"elsewhere", h.Outside, netip.MustParsePrefix(elsewhere[unix.AF_INET]).Addr(), netip.MustParsePrefix(elsewhere[unix.AF_INET6]).Addr()},
	} {
		cluster4, cluster6 := netip.AddrFrom4([4]byte{10, 96, 7, byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("fd96::70%d", i+1))
		a.Apply(
			lab.Service(e.name, fmt.Sprintf("{type: NodePort, clusterIPs: [%q, %q], ports: [{port: %d, protocol: SCTP, nodePort: %d}]}",
				cluster4, cluster6, sctpPort, sctpNodePort+i)),
			lab.Slice(e.name, fmt.Sprintf("%d/SCTP", lab.BackendPort), e.ip4), lab.Slice(e.name, fmt.Sprintf("%d/SCTP", lab.BackendPort), e.ip6))
		for _, f := range []struct {
			family                          int
			client, node, cluster, endpoint netip.Addr
		}{
			{unix.AF_INET, lab.Outside4, lab.Node4, cluster4, e.ip4},
			{unix.AF_INET6, lab.Outside6, lab.Node6, cluster6, e.ip6},
		} {
			server := backendPort(f.endpoint)
			e.n.ServeSCTP(server)
			for _, to := range []netip.AddrPort{netip.AddrPortFrom(f.node, uint16(sctpNodePort+i)), netip.AddrPortFrom(f.cluster, sctpPort)} {
				// A socket that is bound tells the other side of no further address.
				s := h.Outside.SCTPSocket(f.family)
				if err := s.Bind(netip.AddrPortFrom(f.client, 0)); err != nil {
					t.Fatal(err)
				}
				if err := associate(s, to, server); err != nil {
					t.Errorf("%s by %s: %v", e.name, to, err)
				}
				s.Close()
			}
		}
	}
}

// associate says what is wrong with an association by a Service.
func associate(s *lab.Socket, to, server netip.AddrPort) error {
	if err := s.Connect(to); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if got, _, err := s.Receive(); err != nil || got != server.String() {
		return fmt.Errorf("reached %q, %v, want %s", got, err, server)
	}
	if peer, err := s.Peer(); err != nil || peer != to {
		return fmt.Errorf("the peer is %s, %v", peer, err)
	}
	for _, size := range []int{1, 2, 3, 1000} {
		text := strings.Repeat("x", size)
		if got, err := s.Ask(text); err != nil || got != text {
			return fmt.Errorf("%d bytes came back as %d: %w", size, len(got), err)
		}
	}
	return nil
}
