package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/devconf"
)

// maxNodes is how many nodes the address plan has room for.
const maxNodes = 9

// The address plan. The cluster's own network is one for tests (RFC 2544); nothing
// in it leaves the namespaces, which no device connects with the machine's own.
const (
	routerAddr4 = "198.18.0.1"
	routerAddr6 = "fd98:18::1"
	// Clients of load balancers are in another network than the nodes.
	clientAddr4  = "198.19.0.1"
	clientAddr6  = "fd98:19::1"
	clusterCIDRs = "10.244.0.0/16,fd98:244::/48"
	serviceCIDRs = "10.96.0.0/16,fd98:96::/112"
	dnsAddr4     = "10.96.0.10"
	dnsAddr6     = "fd98:96::a"
)

// clientAddrs are those of a client of load balancers, by family.
var clientAddrs = []string{clientAddr4, clientAddr6}

// bridgeName is the switch between the nodes; the router's addresses are on it.
const bridgeName = "fabric"

// nodeAddrs returns the addresses of the i-th node, from 1, on the fabric.
func nodeAddrs(i int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("198.18.0.%d/24", 10+i)),
		netip.MustParsePrefix(fmt.Sprintf("fd98:18::%x/64", 0x10+i)),
	}
}

// fabricMAC is the address of the i-th node's device on the fabric, also after a reboot, and of
// the router, 0. Without one of its own, a bridge has that of a port, and another one once the
// port is gone.
func fabricMAC(i int) net.HardwareAddr { return net.HardwareAddr{0x02, 0x19, 0, 0, 0, byte(i)} }

// podRanges returns the addresses of the i-th node's pods.
func podRanges(i int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)),
		netip.MustParsePrefix(fmt.Sprintf("fd98:244:0:%x::/64", i)),
	}
}

// controlPlaneTable is the routing table of what the control plane itself sends.
const controlPlaneTable = 99

// makeFabric makes this namespace the router of the nodes. What has no other route is
// unreachable. The router has routes to pods; with an add-on only the control plane
// has, so that the API server reaches pods, and what nodes send there is unreachable.
func makeFabric(s settings) error {
	if err := devconf.Reset(); err != nil {
		return err
	}
	if err := setSysctls(
		"net/ipv4/ip_forward", "1",
		"net/ipv6/conf/all/forwarding", "1",
		"net/ipv6/conf/all/accept_dad", "0",
		"net/ipv6/conf/default/accept_dad", "0",
	); err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: fabricMAC(0)}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make the fabric: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	err = errors.Join(
		netlink.LinkSetUp(lo),
		addAddr(bridge, netip.MustParsePrefix(routerAddr4+"/24")),
		addAddr(bridge, netip.MustParsePrefix(routerAddr6+"/64")),
		addAddr(bridge, netip.MustParsePrefix(clientAddr4+"/32")),
		addAddr(bridge, netip.MustParsePrefix(clientAddr6+"/128")),
		netlink.LinkSetUp(bridge))
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		err = errors.Join(err, addRoute(netlink.Route{Dst: ipNet(netip.MustParsePrefix(all)), Type: unix.RTN_UNREACHABLE}))
	}
	table := unix.RT_TABLE_MAIN
	if hasAddon(s.Fabric) {
		table = controlPlaneTable
		err = errors.Join(err, routeOwnBy(table))
	}
	if addons[s.Fabric].assignsAnyNode {
		return errors.Join(err, routeToAllPods(table))
	}
	for i := 1; i <= s.Nodes; i++ {
		err = errors.Join(err, routeToPods(i, table))
	}
	return err
}

// routeToAllPods has a table send packets to any pod to the first node.
func routeToAllPods(table int) error {
	var errs []error
	for f, pods := range strings.Split(clusterCIDRs, ",") {
		gateway := nodeAddrs(1)[f].Addr().AsSlice()
		errs = append(errs, addRoute(netlink.Route{Dst: ipNet(netip.MustParsePrefix(pods)), Gw: gateway, Table: table}))
	}
	return errors.Join(errs...)
}

// routeOwnBy has a table route what is sent from this namespace, and nothing that is
// forwarded.
func routeOwnBy(table int) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rule := netlink.NewRule()
		rule.Family, rule.IifName, rule.Table = family, "lo", table
		errs = append(errs, netlink.RuleAdd(rule))
	}
	return errors.Join(errs...)
}

// routeToPods has a table send packets to the i-th node's pods to the node.
func routeToPods(i, table int) error {
	var errs []error
	for f, pods := range podRanges(i) {
		errs = append(errs, addRoute(netlink.Route{Dst: ipNet(pods), Gw: nodeAddrs(i)[f].Addr().AsSlice(), Table: table}))
	}
	return errors.Join(errs...)
}

// connectNode connects the namespaces of a process, the i-th node, with the
// fabric, and makes its routes.
func connectNode(i, pid int, s settings) error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	if err := inNetworkOf(pid, devconf.Reset); err != nil {
		return err
	}
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: fmt.Sprintf("node-%d", i), MasterIndex: bridge.Attrs().Index})
	veth.PeerName, veth.PeerHardwareAddr = "eth0", fabricMAC(i)
	veth.PeerNamespace = netlink.NsPid(pid)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("connect node %d: %w", i, err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	return inNetworkOf(pid, func() error { return setUpNode(i, s) })
}

// setUpNode sets up the network of the i-th node, from within.
func setUpNode(i int, s settings) error {
	if err := setSysctls(
		"net/ipv4/ip_forward", "1",
		"net/ipv6/conf/all/forwarding", "1",
		"net/ipv6/conf/all/accept_dad", "0",
		"net/ipv6/conf/default/accept_dad", "0",
	); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	err = errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(eth0))
	for _, a := range nodeAddrs(i) {
		err = errors.Join(err, addAddr(eth0, a))
	}
	for _, gw := range []string{routerAddr4, routerAddr6} {
		err = errors.Join(err, addRoute(netlink.Route{Gw: net.ParseIP(gw)}))
	}
	if err != nil {
		return fmt.Errorf("network of node %d: %w", i, err)
	}
	if hasAddon(s.Fabric) {
		return nil
	}
	return connectPods(i, s)
}

// connectPods connects the i-th node's pods with those of other nodes, and with what
// is outside of the cluster.
func connectPods(i int, s settings) error {
	err := masquerade(i)
	if err != nil {
		return err
	}
	if s.Fabric == fabricVXLAN {
		return setUpTunnel(i, s.Nodes)
	}
	for peer := 1; peer <= s.Nodes; peer++ {
		if peer != i {
			err = errors.Join(err, routeToPods(peer, unix.RT_TABLE_MAIN))
		}
	}
	return err
}

// masquerade hides the i-th node's pods from all that is not in the cluster, other
// nodes included, as most clusters do.
func masquerade(i int) error {
	inside := strings.Split(clusterCIDRs, ",")
	pods := podRanges(i)
	cmd := exec.Command("nft", "--file", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`table inet outbound {
	chain postrouting {
		type nat hook postrouting priority srcnat
		oifname eth0 ip saddr %s ip daddr != %s masquerade
		oifname eth0 ip6 saddr %s ip6 daddr != %s masquerade
	}
}
`, pods[0], inside[0], pods[1], inside[1]))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("masquerade pods of node %d: %w\n%s", i, err, out)
	}
	return nil
}

// addRoute adds a route.
func addRoute(r netlink.Route) error {
	if err := netlink.RouteAdd(&r); err != nil {
		return fmt.Errorf("route %v: %w", r, err)
	}
	return nil
}

// addAddr gives a device an address, without duplicate address detection.
func addAddr(link netlink.Link, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: ipNet(p).Mask}, Flags: unix.IFA_F_NODAD}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("address %s: %w", p, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   p.Masked().Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}
}

// setSysctls sets names and values of the calling thread's network namespace.
func setSysctls(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if err := os.WriteFile("/proc/sys/"+pairs[i], []byte(pairs[i+1]), 0); err != nil {
			return err
		}
	}
	return nil
}

// inNetworkOf runs fn on a thread in the network namespace of a process.
func inNetworkOf(pid int, fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		ns, err := netns.GetFromPid(pid)
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// run runs a program to its end; the error has what it wrote.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}
