package policy

import (
	"fmt"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
)

// NodePortAddresses says on which of the node's addresses NodePorts answer. The
// zero value is every one.
type NodePortAddresses struct {
	// Primary is the node's own IP of each family only.
	Primary bool
	// CIDRs are the prefixes that the addresses must be in; none of a family is any of it.
	CIDRs []netip.Prefix
}

// ParseNodePortAddresses reads the value of nodePortAddresses: nothing,
// "primary", or a list of CIDRs.
func ParseNodePortAddresses(values []string) (NodePortAddresses, error) {
	if len(values) == 1 && values[0] == "primary" {
		return NodePortAddresses{Primary: true}, nil
	}
	var n NodePortAddresses
	for i, v := range values {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			return n, fmt.Errorf("element %d: %q is neither a CIDR nor, alone, \"primary\"", i+1, v)
		}
		n.CIDRs = append(n.CIDRs, p.Masked())
	}
	return n, nil
}

// Select returns those of the local addresses on which NodePorts answer.
func (n NodePortAddresses) Select(local []netip.Addr, node *model.LocalNode) []netip.Addr {
	var selected []netip.Addr
	for _, a := range local {
		if n.allows(a, node) {
			selected = append(selected, a)
		}
	}
	return selected
}

// All reports whether NodePorts answer on every address of a family, also on those
// that the node does not have yet.
func (n NodePortAddresses) All(family model.Family) bool {
	return !n.Primary && n.in(family, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// Loopback reports whether local processes have NodePorts at 127.0.0.1, or ::1. They do,
// as with kube-proxy, unless CIDRs of the family are given in which that is not.
func (n NodePortAddresses) Loopback(family model.Family) bool {
	return n.Primary || n.in(family, func(p netip.Prefix) bool { return p.Contains(loopback(family)) })
}

func (n NodePortAddresses) allows(a netip.Addr, node *model.LocalNode) bool {
	if n.Primary {
		return a == primary(node, model.FamilyOf(a))
	}
	return n.in(model.FamilyOf(a), func(p netip.Prefix) bool { return p.Contains(a) })
}

// in reports whether one of a family's CIDRs is as asked for, or there is none: kube-proxy takes
// 0.0.0.0/0 or ::/0 then, so that CIDRs of one family say nothing about the other.
func (n NodePortAddresses) in(family model.Family, is func(netip.Prefix) bool) bool {
	given := false
	for _, p := range n.CIDRs {
		if model.FamilyOf(p.Addr()) != family {
			continue
		}
		if given = true; is(p) {
			return true
		}
	}
	return !given
}

// primary returns the node's own IP of the family. It is loopback, which only the node
// itself reaches, when none is known.
func primary(node *model.LocalNode, family model.Family) netip.Addr {
	for _, a := range node.Addrs {
		if model.FamilyOf(a) == family {
			return a
		}
	}
	return loopback(family)
}

func loopback(family model.Family) netip.Addr {
	if family == model.IPv4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}
