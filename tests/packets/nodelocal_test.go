package packets_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/tests/lab"
)

// cacheAddrs are those of a node's DNS cache, link-local and of no Service.
var cacheAddrs = parseAddrs("169.254.20.10", "fd00:20::10")

// dnsServices are the cluster's name server, and the same as the cache of a node asks it.
func (c *cluster) dnsServices(labels string) []string {
	var manifests []string
	for i, name := range map[int]string{dnsService: "kube-dns", dnsService + 1: "kube-dns-upstream"} {
		addr := clusterIP(i)
		service := lab.Service(name, fmt.Sprintf("{clusterIPs: [%q, %q], ports: [{name: u, port: 53, protocol: UDP}, {name: t, port: 53}]}", addr[0], addr[1]))
		if i == dnsService {
			service = strings.Replace(service, "metadata: {", "metadata: {labels: {"+labels+"}, ", 1)
		}
		manifests = append(manifests, service)
		for family := range 2 {
			manifests = append(manifests, c.slice(name, family, []endpoint{remote}))
		}
	}
	return manifests
}

// TestNodeLocalDNS: a node's DNS cache is asked at its own address and, where the name server's Service
// says that another proxy serves it, at the Service's, which the cache has on a device of the node. The
// cache asks the name server by a Service of its own. Other addresses of the range stay dropped.
func TestNodeLocalDNS(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"sockets": nil, "packets": podFlags} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a := serveCluster(t, func(c *cluster) []string { return c.dnsServices("") }, flags...)
			c.startCache(t)
			c.checkCache(t, remote.server()) // the cache is passed by
			a.apply(c.dnsServices("service.kubernetes.io/service-proxy-name: node-cache")...)
			c.checkCache(t, "cache")
			for _, network := range networks {
				c.dropsUnallocated(t, network)
			}
		})
	}
}

// dropsUnallocated fails the test unless the node drops what a pod sends to an address of the Service
// range that no Service has.
func (c *cluster) dropsUnallocated(t *testing.T, network string) {
	t.Helper()
	before := eventCount(t, c.nodes[0], "unallocated_address")
	s := c.podOf(local).Socket(network)
	defer s.Close()
	// Where sockets are served, this fails.
	err := s.StartConnect(netip.AddrPortFrom(clusterIP(99).of(network), 53))
	if err == nil && strings.HasPrefix(network, "udp") {
		err = s.Send("query")
	}
	lab.Eventually(t, fmt.Sprintf("%s to an unallocated address is dropped (%v)", network, err), func() bool {
		return eventCount(t, c.nodes[0], "unallocated_address") > before
	})
}

// startCache serves at the addresses of the cache and at that of the name server's Service.
func (c *cluster) startCache(t *testing.T) {
	t.Helper()
	const device = "nodelocaldns"
	n := c.nodes[0].Namespace
	n.AddLink(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: device}}) // of type dummy where the kernel has that
	for _, at := range []addrs{cacheAddrs, clusterIP(dnsService)} {
		for _, addr := range at {
			n.AddAddr(device, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
		serveAt(t, n, "cache", at, 53)
	}
}

// checkCache asks the cache at its own addresses, who answers for the name server at the Service's, and
// the name server as the cache does.
func (c *cluster) checkCache(t *testing.T, service string) {
	t.Helper()
	for _, network := range networks {
		for from, n := range map[string]*lab.Namespace{
			"a pod": c.podOf(local), "another pod": c.podOf(otherLocal), "the node": c.nodes[0].Namespace,
		} {
			for to, want := range map[addrs]string{
				cacheAddrs: "cache", clusterIP(dnsService): service, clusterIP(dnsService + 1): remote.server(),
			} {
				got, err := ask(n, network, netip.AddrPortFrom(to.of(network), 53), "query")
				if err != nil || got.name != want {
					t.Errorf("%s from %s to %s: %v, %v, want %s", network, from, to.of(network), got, err, want)
				}
			}
		}
	}
}
