package convert

import (
	"net/netip"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"

	"github.com/beeline-lb/beeline/pkg/model"
)

// parseAddr reads an address as kube-proxy does: leading zeros are decimal, as
// in objects older than Go 1.17's stricter rule, there is no zone, and an
// IPv4-mapped address is IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return addr.Unmap(), ok
}

// parseAddrs returns the valid addresses of list in its order.
func parseAddrs(list []string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range list {
		if addr, ok := parseAddr(s); ok {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// unicast returns those addresses of list that one host can have beside others. The API server takes
// any as a load balancer's: "minikube tunnel" writes 127.0.0.1, which is each pod's own, and under
// 0.0.0.0 are the NodePorts of all addresses.
func unicast(list []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(list, func(addr netip.Addr) bool { return !model.IsUnicast(addr) || addr.IsLoopback() })
}

// parsePrefixes returns the valid prefixes of list in its order, with the host
// bits cleared. The API allows white space around each.
func parsePrefixes(list []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, s := range list {
		if p, ok := parsePrefix(strings.TrimSpace(s)); ok {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

func parsePrefix(s string) (netip.Prefix, bool) {
	_, ipNet, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, _ := netip.AddrFromSlice(ipNet.IP)
	bits, _ := ipNet.Mask.Size()
	if addr.Is4In6() {
		addr, bits = addr.Unmap(), bits-96
	}
	return netip.PrefixFrom(addr, bits), true
}
