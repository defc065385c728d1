package packets_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// The tunnel of a kernel client: the ports of its own end, of the Service and of
// the endpoint, and the addresses inside of it.
const (
	tunnelPort         = 4790
	tunnelEndpointPort = 4791
	tunnelHeaderSize   = 8
)

var (
	tunnelMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	tunnelNear = netip.MustParseAddrPort("10.250.0.1:7000")
	tunnelFar  = netip.MustParseAddrPort("10.250.0.2:7001")
)

// TestKernelClient: packets that the node's kernel itself sends to a Service, here those of a tunnel
// with a ClusterIP as remote address, reach the endpoint on the other node; replies come from the
// Service.
func TestKernelClient(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		for _, network := range []string{"udp4", "udp6"} {
			t.Run(mode+" "+network, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, mode == "clsact" && network == "udp6")
				c, _ := serveCluster(t, func(*cluster) []string { return tunnelService() }, "--tc-mode", mode)
				if err := c.nodes[0].addTunnel(clusterIP(1).of(network)); err != nil {
					t.Fatal(err)
				}
				for _, offload := range offloads {
					t.Run(offload.name, func(t *testing.T) {
						offload.set(c)
						c.watchChecksums(t)
						c.checkTunnel(t, network)
					})
				}
			})
		}
	}
}

// tunnelService returns the manifests of a Service whose endpoint is node 2.
func tunnelService() []string {
	manifests := []string{lab.Service("tunnel", fmt.Sprintf("{clusterIPs: [%q, %q], ports: [{port: %d, protocol: UDP}]}",
		clusterIP(1)[0], clusterIP(1)[1], tunnelPort))}
	for _, addr := range nodeAddrs(2) {
		manifests = append(manifests, lab.SliceOf("tunnel", fmt.Sprintf("%d/UDP", tunnelEndpointPort),
			fmt.Sprintf("{addresses: [%q], nodeName: node2}", addr)))
	}
	return manifests
}

// addTunnel makes a tunnel to an address. The neighbour in it is known, and
// packets come from the port that they go to, so that an answer reaches the tunnel.
func (n *node) addTunnel(to netip.Addr) error {
	n.SetSysctl("ipv6/conf/default/disable_ipv6", "1")
	n.AddLink(&netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: "tunnel", HardwareAddr: tunnelMAC},
		VxlanId:   7,
		Port:      tunnelPort,
		PortLow:   tunnelPort,
		PortHigh:  tunnelPort + 1,
		Group:     to.AsSlice(),
	})
	n.AddAddr("tunnel", tunnelNear.Addr().String()+"/24")
	return n.Run(func() error {
		tunnel, err := netlink.LinkByName("tunnel")
		if err != nil {
			return err
		}
		return netlink.NeighAdd(&netlink.Neigh{
			LinkIndex:    tunnel.Attrs().Index,
			State:        netlink.NUD_PERMANENT,
			IP:           tunnelFar.Addr().AsSlice(),
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		})
	})
}

// checkTunnel sends through the tunnel of node 1, and back from node 2.
func (c *cluster) checkTunnel(t *testing.T, network string) {
	t.Helper()
	near, far := c.nodes[0].Socket("udp4"), c.nodes[1].Socket(network)
	defer near.Close()
	defer far.Close()
	if err := near.Bind(tunnelNear); err != nil {
		t.Fatal(err)
	}
	if err := far.Bind(netip.AddrPortFrom(nodeAddrs(2).of(network), tunnelEndpointPort)); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "a packet comes by the tunnel", func() bool { // one may get lost
		if err := near.SendTo("question", tunnelFar); err != nil {
			t.Fatal(err)
		}
		return far.Ready(time.Second)
	})
	packet, from, err := far.Receive()
	if err != nil || !strings.HasSuffix(packet, "question") {
		t.Fatalf("the endpoint got %q, %v", packet, err)
	}
	if want := netip.AddrPortFrom(nodeAddrs(1).of(network), tunnelPort); from != want {
		t.Errorf("the endpoint has seen %s, want %s", from, want)
	}
	outer := c.nodes[0].RawSocket(map[string]int{"udp4": unix.AF_INET, "udp6": unix.AF_INET6}[network], unix.SOCK_RAW, unix.IPPROTO_UDP)
	defer outer.Close()
	answer := frame{from: tunnelFar, to: tunnelNear, protocol: unix.IPPROTO_UDP, payload: "answer"}
	if err := far.SendTo(packet[:tunnelHeaderSize]+string(toMAC(answer.bytes(), tunnelMAC)), from); err != nil {
		t.Fatal(err)
	}
	if _, source, err := outer.Receive(); err != nil || source.Addr() != clusterIP(1).of(network) {
		t.Errorf("the tunnel's packet came from %s, %v", source.Addr(), err)
	}
	if got, source, err := near.Receive(); err != nil || got != "answer" || source != tunnelFar {
		t.Errorf("through the tunnel came %q from %s, %v", got, source, err)
	}
}
