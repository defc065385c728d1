package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// virtualIP is the load-balancer IP of the i-th Service, in the nodes' network, which the leading node has on
// its uplink, as kube-vip gives it.
func virtualIP(i int) addrs {
	return parseAddrs(fmt.Sprintf("10.2.0.10%d", i), fmt.Sprintf("fd02::10%d", i))
}

// vipServices are one of each external traffic policy, with an endpoint on each node.
func (c *cluster) vipServices() []string {
	var manifests []string
	for i, policy := range []string{"Local", "Cluster"} {
		for _, text := range c.service(i+1, "vip-"+strings.ToLower(policy), "externalTrafficPolicy: "+policy+",", []endpoint{local, remote}) {
			for family, addr := range balancerIP(i + 1) {
				text = strings.ReplaceAll(text, fmt.Sprintf("{ip: %q}", addr), fmt.Sprintf("{ip: %q}", virtualIP(i + 1)[family]))
			}
			manifests = append(manifests, text)
		}
	}
	return manifests
}

// lead gives the virtual IPs to a node, and takes them from the former one. The router's neighbours are
// forgotten in place of kube-vip's gratuitous ARP; the kernels answer by ARP and NDP who has the addresses.
func (c *cluster) lead(t *testing.T, to int) {
	t.Helper()
	for i := range 2 {
		for _, addr := range virtualIP(i + 1) {
			host := netip.PrefixFrom(addr, addr.BitLen()).String()
			for _, n := range c.nodes {
				if n.index != to && n.has(t, addr) {
					n.DeleteAddr(uplink, host)
				}
			}
			c.nodes[to-1].AddAddr(uplink, host)
			err := c.router.Run(func() error {
				link, err := netlink.LinkByName("nodes")
				if err != nil {
					return err
				}
				err = netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice()})
				if errors.Is(err, unix.ENOENT) {
					return nil
				}
				return err
			})
			if err != nil {
				t.Fatalf("forget the neighbour %s: %v", addr, err)
			}
		}
	}
}

// has reports whether a node has an address on its uplink.
func (n *node) has(t *testing.T, addr netip.Addr) bool {
	t.Helper()
	out, err := n.Output("ip", "-o", "address", "show", "dev", uplink, "to", addr.String())
	if err != nil {
		t.Fatal(failure(err))
	}
	return out != ""
}

// TestVirtualIP: load-balancer IPs that the leading node has itself, and that go over to another node and
// back. Clients reach endpoints by the leader, those of externalTrafficPolicy Local its own alone, which see
// the client; nodes and pods reach all. A connection by the former leader ends with a reset as soon as it sends, or
// goes on if the addresses have come back by then, and a UDP socket reaches the new leader's endpoints.
func TestVirtualIP(t *testing.T) {
	t.Parallel()
	lab.Need(t, "ip")
	for name, flags := range map[string][]string{"sockets": nil, "packets": podFlags} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "sockets")
			c := newCluster(t, false)
			c.serveEverywhere(t, c.vipServices(), flags...)
			c.lead(t, 1)
			c.checkVirtualIP(t, 1)
			talking, silent := c.openVirtualIP(t), c.openVirtualIP(t)
			c.awaitAcknowledged(t)
			c.lead(t, 2)
			c.checkVirtualIP(t, 2)
			for what, s := range talking {
				network, _, _ := strings.Cut(what, " ")
				err := goesOn(s, network)
				if network[:3] == "tcp" && !errors.Is(err, unix.ECONNRESET) || network[:3] == "udp" && err != nil {
					t.Errorf("%s, when another node leads: %v", what, err)
				}
			}
			a := c.agents[1] // which finds the addresses at its start
			a.Signal(unix.SIGKILL)
			_ = a.Wait()
			a.start()
			c.checkVirtualIP(t, 2)
			c.lead(t, 1)
			for what, s := range silent {
				network, _, _ := strings.Cut(what, " ")
				if err := goesOn(s, network); err != nil {
					t.Errorf("%s, when the former leader leads again: %v", what, err)
				}
			}
			c.checkVirtualIP(t, 1)
		})
	}
}

// openVirtualIP opens connections of the client to the virtual IPs.
func (c *cluster) openVirtualIP(t *testing.T) map[string]*lab.Socket {
	t.Helper()
	open := map[string]*lab.Socket{}
	for _, network := range networks {
		for i := range 2 {
			to := netip.AddrPortFrom(virtualIP(i+1).of(network), 80)
			open[network+" to "+to.String()], _ = connect(t, c.client, network, to)
		}
	}
	return open
}

// awaitAcknowledged waits until the endpoints have an acknowledgement of all that they have sent, which a client
// may delay.
func (c *cluster) awaitAcknowledged(t *testing.T) {
	t.Helper()
	for _, pod := range []*lab.Namespace{c.podOf(local), c.podOf(remote)} {
		lab.Eventually(t, "all is acknowledged", func() bool {
			sockets, err := pod.Output("cat", "/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6")
			if err != nil {
				t.Error(failure(err))
				return true
			}
			for line := range strings.Lines(sockets) {
				const established = "01"
				if f := strings.Fields(line); f[3] == established && !strings.HasPrefix(f[4], "00000000:") {
					return false // bytes that were sent
				}
			}
			return true
		})
	}
}

// checkVirtualIP asks the virtual IPs from everywhere.
func (c *cluster) checkVirtualIP(t *testing.T, leader int) {
	t.Helper()
	own := endpoint{node: leader, place: "routed"}
	for _, network := range networks {
		for i, may := range [][]endpoint{{own}, {local, remote}} {
			to := netip.AddrPortFrom(virtualIP(i+1).of(network), 80)
			for range 4 {
				got, err := ask(c.client, network, to, "x")
				if err == nil {
					err = c.checkByLeader(network, leader, may, got)
				}
				if err != nil {
					t.Errorf("%s from outside to %s: %v", network, to, err)
				}
			}
			for from, n := range map[string]*lab.Namespace{
				"node 1": c.nodes[0].Namespace, "node 2": c.nodes[1].Namespace, "a pod of node 1": c.podOf(local), "a pod of node 2": c.podOf(remote),
			} {
				if got, err := ask(n, network, to, "x"); err != nil || got.name != local.server() && got.name != remote.server() {
					t.Errorf("%s from %s to %s: reached %v, error %v", network, from, to, got, err)
				}
			}
		}
		at := netip.AddrPortFrom(virtualIP(2).of(network), nodePort(network, 2).Port())
		lab.Eventually(t, fmt.Sprintf("%s by the NodePort at %s, an address of node %d", network, at, leader), func() bool {
			got, err := ask(c.client, network, at, "x")
			if errors.Is(err, unix.ECONNREFUSED) {
				return false // the agent has not heard of the address yet
			}
			if err == nil {
				err = c.checkByLeader(network, leader, []endpoint{local, remote}, got)
			}
			if err != nil {
				t.Errorf("%s from outside to %s: %v", network, at, err)
			}
			return true
		})
	}
}

// checkByLeader says what is wrong with an answer to the client by a leading node: an endpoint there sees the
// client, one of the other node the leader's own address.
func (c *cluster) checkByLeader(network string, leader int, may []endpoint, got answer) error {
	for _, e := range may {
		if e.server() != got.name {
			continue
		}
		want := got.self.Addr()
		if e.node != leader {
			want = nodeAddrs(leader).of(network)
		}
		if got.client.Addr() != want {
			return fmt.Errorf("%s has seen %s, want %s", got.name, got.client, want)
		}
		return nil
	}
	return fmt.Errorf("reached %s, want one of %v", got.name, may)
}
