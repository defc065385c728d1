package packets_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/tests/lab"
)

// paths looks at how packets leave node 1: those that tc or the host's stack sends pass its devices,
// those that XDP sends are seen at the router alone.
type paths struct {
	c            *cluster
	node, router *lab.Capture
	port         int            // index of the router's device to node 1
	devices      map[int]string // of node 1
	seen         map[string]int // paths that were as explained, by hook, forwarding and device
}

func (c *cluster) watchPaths(t *testing.T) *paths {
	t.Helper()
	p := &paths{c: c, node: c.nodes[0].Capture(), router: c.router.Capture(), devices: make(map[int]string), seen: make(map[string]int)}
	err := errors.Join(
		c.nodes[0].Run(func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				p.devices[l.Attrs().Index] = l.Attrs().Name
			}
			return err
		}),
		c.router.Run(func() error {
			l, err := netlink.LinkByName(c.nodes[0].name())
			if err == nil {
				p.port = l.Attrs().Index
			}
			return err
		}))
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range networks[:2] { // XDP leaves packets to a neighbour that is not known yet to tc
		connect(t, c.nodes[0].Namespace, network, netip.AddrPortFrom(nodeAddrs(2).of(network), backendPort))
	}
	return p
}

// forget drops what has been seen.
func (p *paths) forget() {
	p.node.Frames()
	p.router.Frames()
}

// compare says how the packets of a connection, which has reached the backend that was named, differ
// from the path that was named: in hook, device, next hop, or the node that the tunnel leads to.
func (p *paths) compare(a *asked) error {
	path := a.said.Path
	backend := netip.AddrPortFrom(a.said.Chosen.Address, a.said.Chosen.TargetPort)
	hop, tunnelEnd := path.Gateway, netip.Addr{}
	if path.Forwarding == "dsr" {
		i := slices.IndexFunc(p.c.nodes, func(n *node) bool { return n.name() == path.Node })
		if i < 0 {
			return fmt.Errorf("there is no node %q", path.Node)
		}
		tunnelEnd = p.c.nodes[i].listed[0]
	}
	if !hop.IsValid() {
		hop = backend.Addr()
		if tunnelEnd.IsValid() {
			hop = tunnelEnd
		}
	}
	is := func(f lab.Frame) bool {
		if tunnelEnd.IsValid() {
			return isTunnelled(f.Bytes, tunnelEnd, path.Source, a.to)
		}
		return isFromTo(f.Bytes, path.Source, backend)
	}
	hook, device, frame := "", "", lab.Frame{}
	for _, f := range p.node.Frames() {
		if f.Leaves && is(f) && (device == "" || p.devices[f.Device] == path.Device) { // the bridge's port sees it, too
			hook, device, frame = "tc", p.devices[f.Device], f
		}
	}
	for _, f := range p.router.Frames() {
		if hook == "" && !f.Leaves && f.Device == p.port && is(f) {
			hook, device, frame = "xdp", uplink, f
		}
	}
	if hook == "" && path.Device == "lo" { // the backend is in the network namespace of the node
		hook, device = "tc", "lo"
	}
	// XDP leaves a datagram whose checksum is not filled in to tc.
	if hook != path.Hook && !(path.Hook == "xdp" && hook == "tc" && a.network[:3] == "udp") {
		return fmt.Errorf("it is sent on by %q, explained: %s", hook, path.Hook)
	}
	if device != path.Device {
		return fmt.Errorf("it leaves by %q, explained: %s", device, path.Device)
	}
	p.seen[fmt.Sprintf("%s %s %s", path.Hook, path.Forwarding, device)]++
	if frame.Bytes == nil {
		return nil
	}
	mac, err := p.c.macByARP(device, hop)
	if err == nil && !bytes.Equal(frame.Bytes[:6], mac) {
		err = fmt.Errorf("it goes to %s, explained: %s, which has %s", net.HardwareAddr(frame.Bytes[:6]), hop, mac)
	}
	return err
}

// macByARP returns the MAC address that node 1 knows of a neighbour.
func (c *cluster) macByARP(device string, addr netip.Addr) (mac net.HardwareAddr, err error) {
	err = c.nodes[0].Run(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		neighbours, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
		for _, n := range neighbours {
			if known, _ := netip.AddrFromSlice(n.IP); known.Unmap() == addr {
				mac = n.HardwareAddr
			}
		}
		return err
	})
	if err == nil && mac == nil {
		err = fmt.Errorf("node 1 knows no neighbour %s at %s", addr, device)
	}
	return mac, err
}

// isFromTo reports whether a packet with an Ethernet header is from and to these addresses and ports.
func isFromTo(frame []byte, from, to netip.AddrPort) bool {
	ip := frame[min(len(frame), ethernetSize):]
	size := headerSize(to.Addr())
	if len(ip) < size+4 || (ip[0]>>4 == 4) != to.Addr().Is4() {
		return false
	}
	at := map[int]int{20: 12, 40: 8}[size] // of the addresses
	return bytes.Equal(ip[at:size], slices.Concat(from.Addr().AsSlice(), to.Addr().AsSlice())) &&
		binary.BigEndian.Uint16(ip[size:]) == from.Port() && binary.BigEndian.Uint16(ip[size+2:]) == to.Port()
}

// isTunnelled reports whether a packet is of the tunnel to a node and has one from and to these
// addresses and ports in it.
func isTunnelled(frame []byte, node netip.Addr, from, to netip.AddrPort) bool {
	size := headerSize(node)
	inner := ethernetSize + size + innerAt
	return len(frame) > inner && (frame[ethernetSize]>>4 == 4) == node.Is4() &&
		bytes.Equal(frame[ethernetSize+size-len(node.AsSlice()):ethernetSize+size], node.AsSlice()) &&
		isFromTo(frame[inner-ethernetSize:], from, to)
}

// checkSeen fails where a path of those that there are was not taken.
func (p *paths) checkSeen(t *testing.T, want ...string) {
	t.Helper()
	for _, path := range want {
		if p.seen[path] == 0 {
			t.Errorf("no connection was served by %s: %v", path, p.seen)
		}
	}
}
