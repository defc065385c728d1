package differential

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// excuse is a documented difference of verdicts between Beeline and kube-proxy.
type excuse struct {
	// where says which page documents it, and why.
	where   string
	applies func(*cluster, difference) bool
}

// excuses are all of them. Documented differences of sources are in [shown].
var excuses = []excuse{
	{
		where: "docs/design/sockets.md, Decisions, Loopback NodePorts: processes of the node reach them; kube-proxy has them " +
			"by iptables alone, and nobody listens there",
		applies: func(c *cluster, d difference) bool {
			_, inside, _ := candidates(c, d.probe)
			for _, s := range d.beeline.servers() {
				if !slices.Contains(inside, s) {
					return false
				}
			}
			return d.kind == kindLoopback && len(d.kubeProxy.sources) == 0 && len(d.beeline.verdicts) == 0
		},
	},
	{
		where: "docs/design/sockets.md, Decisions: connect() of a UDP socket to an undeclared port succeeds, for resolvers that " +
			"learn a source address so; its datagrams reach nobody",
		applies: func(_ *cluster, d difference) bool {
			return d.kind == kindUndeclared && d.udp && len(d.beeline.sources)+len(d.kubeProxy.sources) == 0 &&
				d.machine != fromOutside && d.machine != fromOther
		},
	},
	{
		where: "docs/design/sockets.md, Decisions, Source ranges at connect() and Load-balancer IPs: a socket of the node counts " +
			"as coming from each address of the node, and a load-balancer IP that the node has is let in",
		applies: func(c *cluster, d difference) bool {
			return d.machine == fromNode && isBalancer(c.service(d.service), d.to.Addr()) && slices.Equal(d.kubeProxy.verdicts, []verdict{dropped}) &&
				(d.to.Addr() == balancerIP(localBalancer)[d.family()] || inRanges(c.service(d.service), nodesOwn(c)))
		},
	},
}

// isBalancer says whether an address is one of a Service's load-balancer IPs, whatever else it is.
func isBalancer(s *corev1.Service, addr netip.Addr) bool {
	return s != nil && slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool { return in.IP == addr.String() })
}

// nodesOwn returns the addresses of the node, whichever device has them.
func nodesOwn(c *cluster) []netip.Addr {
	own := slices.Clone(c.addrs)
	for _, a := range []addrs{nodeAddrs, podGateway, balancerIP(localBalancer)} {
		own = append(own, a[:]...)
	}
	return own
}

// inRanges says whether a Service's source ranges have one of the addresses.
func inRanges(s *corev1.Service, addrs []netip.Addr) bool {
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		if r, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && slices.ContainsFunc(addrs, r.Contains) {
			return true
		}
	}
	return false
}

// shownSource is a documented difference of the address that an endpoint sees.
type shownSource struct {
	where   string
	applies func(p *pair, d difference, server netip.AddrPort, seen string) bool
}

// shown are the sources that Beeline shows and kube-proxy hides.
var shown = []shownSource{
	{
		// kube-proxy masquerades whatever comes from outside by the policy Cluster.
		where: "docs/features.md, packets: backends on this node see the client's address",
		applies: func(p *pair, d difference, server netip.AddrPort, seen string) bool {
			return seen == ownSource && !p.settings.masquerade && onNode(server.Addr())
		},
	},
	{
		where: "docs/features.md, sockets: a socket is connected to the endpoint and keeps its own address, also under " +
			"--masquerade-all (docs/design/packets.md, Differences from kube-proxy)",
		applies: func(p *pair, d difference, server netip.AddrPort, seen string) bool {
			return seen == ownSource && (d.machine == fromPod0 || d.machine == fromPod1)
		},
	},
	{
		where: "docs/design/packets.md, Masquerading: a backend on this node sees an address of the node, here that of the " +
			"uplink; kube-proxy's is that of the pod's device",
		applies: func(p *pair, d difference, server netip.AddrPort, seen string) bool {
			return p.settings.masquerade && seen == nodeAddrs[d.family()].String() && onNode(server.Addr())
		},
	},
	{
		where: "docs/design/packets.md, Differences from kube-proxy: a pod that reaches itself sees the Service's address, " +
			"over UDP that of a hairpin",
		applies: func(p *pair, d difference, server netip.AddrPort, seen string) bool {
			own := d.to.Addr()
			if d.udp {
				own = hairpinAddrs[d.family()]
			}
			return p.settings.packets && seen == own.String() && isOwn(d.probe, attempt{}, server.Addr())
		},
	},
}

// mayShow says whether a server may see a source that it does not see by kube-proxy.
func (p *pair) mayShow(d difference, server netip.AddrPort, seen string) bool {
	for _, s := range shown {
		if s.applies(p, d, server, seen) {
			return true
		}
	}
	return false
}

// onNode says whether an endpoint is on the node that the proxies serve.
func onNode(addr netip.Addr) bool {
	for _, pl := range places {
		if pl.node == nodeName && (pl.addrs[0] == addr || pl.addrs[1] == addr) {
			return true
		}
	}
	return false
}
