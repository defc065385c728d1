package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// clientKind is by what the client's connection is seen first.
type clientKind string

const (
	clientSocket clientKind = "socket"
	clientPacket clientKind = "packet"
	clientPod    clientKind = "pod-packet"
	clientNode   clientKind = "node-packet" // of a process of this node, as it leaves
)

// hooks are those at which the programs see the client's packets.
var hooks = map[clientKind]bpf.SockBlHook{
	clientPacket: bpf.SockBlHookBL_HOOK_INGRESS,
	clientPod:    bpf.SockBlHookBL_HOOK_POD_INGRESS,
	clientNode:   bpf.SockBlHookBL_HOOK_EGRESS,
}

// client is who connects.
type client struct {
	kind clientKind
	text string
	from netip.AddrPort
	// hasPort says that the port of from was asked for.
	hasPort bool
	// unserved says why no program sees the connection.
	unserved string
	// noSocket says why the programs do not see a socket of this protocol, but its packets; "": they do.
	noSocket string

	ns      *netns.Namespace // of a socket; nil is the calling thread's
	cookie  uint64           // of a socket's
	ifindex int              // of packets, and of a pod's on this side
	device  *Device          // of packets
}

// errFamily says that client and address are of different families.
var errFamily = errors.New("the client has no address of this family")

// firstPort is the source port of packets that are asked about without one.
const firstPort = 50000

func (c *client) close() {
	if c.ns != nil {
		c.ns.Close()
	}
}

// run calls fn in the network namespace of a socket; packets are seen in the calling thread's.
func (c *client) run(fn func() error) error {
	if c.ns == nil || c.kind != clientSocket {
		return fn()
	}
	return c.ns.Run(fn)
}

func (c *client) explained() ExplainedClient {
	e := ExplainedClient{Kind: string(c.kind), Address: c.from.Addr(), Port: c.from.Port()}
	if c.kind == clientSocket {
		e.Netns = strconv.FormatUint(c.cookie, 10)
	}
	if c.device != nil {
		e.Device = c.device.Name
	}
	if c.device != nil && c.kind != clientNode { // XDP does not see what leaves
		e.XDP = c.device.XDP
	}
	return e
}

// client finds out who asks.
func (d *Datapath) client(o ExplainOptions) (*client, error) {
	noSocket, err := d.noSocket(o)
	if err != nil {
		return nil, err
	}
	if o.From == "" {
		c, err := inNetns(nil, "a process in this network namespace, its socket not bound to an address")
		if err != nil || noSocket == "" {
			return c, err
		}
		return c, d.leaves(c, o.To.Addr(), noSocket)
	}
	from, hasPort, err := parseFrom(o.From)
	if err != nil {
		return d.clientIn(o, noSocket)
	}
	if from.Addr().Is4() != o.To.Addr().Unmap().Is4() {
		return nil, fmt.Errorf("%s to %s: %w", from.Addr(), o.To.Addr(), errFamily)
	}
	return d.clientAt(o, &client{from: from, hasPort: hasPort, noSocket: noSocket})
}

// clientIn returns the client that is named by its network namespace.
func (d *Datapath) clientIn(o ExplainOptions, noSocket string) (*client, error) {
	path := o.From
	if !strings.Contains(path, "/") {
		path = filepath.Join("/run/netns", path)
	}
	ns, err := netns.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%q is no address, and no network namespace (%w): name a pod by its address (kubectl get pods -o wide), or ask \"kubectl beeline explain\", which takes its name", o.From, err)
	}
	c, err := inNetns(ns, fmt.Sprintf("a process in the network namespace %s, its socket not bound to an address", path))
	if err != nil || noSocket == "" {
		return c, err
	}
	if here, err := datapath.NetnsCookie(); err != nil || here == c.cookie {
		return c, errors.Join(err, d.leaves(c, o.To.Addr(), noSocket))
	}
	peers, err := peersOf(ns)
	if err != nil {
		return c, err
	}
	source := c.ownRoute(o.To.Addr()).source
	if !source.IsValid() || len(peers) == 0 {
		c.unserved = noSocket + ", and no device leads there from this network namespace"
		return c, nil
	}
	return d.pod(o, ns, &client{from: netip.AddrPortFrom(source, 0), ifindex: peers[0], noSocket: noSocket}, peers)
}

// noSocket says why the programs do not see sockets of a protocol; "": they do.
func (d *Datapath) noSocket(o ExplainOptions) (string, error) {
	if o.Protocol == model.SCTP {
		return "the kernel runs no connect program for SCTP: its packets are what counts", nil
	}
	program := bpf.SockProgBlConnect6
	switch is4 := o.To.Addr().Unmap().Is4(); {
	case o.Protocol == model.UDP && is4:
		program = bpf.SockProgBlSendmsg4
	case o.Protocol == model.UDP:
		program = bpf.SockProgBlSendmsg6
	case is4:
		program = bpf.SockProgBlConnect4
	}
	attached, err := datapath.SocketHook(d.bpffs, program)
	if err != nil || attached {
		return "", err
	}
	if _, err := datapath.SocketConstants(d.bpffs); err != nil { // none of them is, which the question meets
		return "", nil
	}
	return fmt.Sprintf("%s is attached to no cgroup: the packets are what counts", program), nil
}

// leaves makes c, a process of this network namespace, one whose packets the programs see where they leave.
func (d *Datapath) leaves(c *client, to netip.Addr, why string) error {
	r := c.ownRoute(to)
	c.kind, c.ifindex = clientNode, r.ifindex
	if c.text += ", " + why; r.ifindex == 0 {
		c.unserved = fmt.Sprintf("no route leads to %s", to)
		return nil
	}
	if !c.from.Addr().IsValid() {
		c.from = netip.AddrPortFrom(r.source, 0)
	}
	c.text += ", which leave by " + r.device
	return d.seen(c, r.device)
}

// parseFrom parses an address with a port or without.
func parseFrom(text string) (from netip.AddrPort, hasPort bool, err error) {
	if from, err = netip.ParseAddrPort(text); err == nil {
		return netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), from.Port() != 0, nil
	}
	addr, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(addr.Unmap(), 0), false, err
}

// inNetns returns a process of a network namespace.
func inNetns(ns *netns.Namespace, text string) (*client, error) {
	c := &client{kind: clientSocket, text: text, ns: ns}
	err := c.run(func() (err error) {
		c.cookie, err = datapath.NetnsCookie()
		return err
	})
	return c, err
}

// clientAt returns the client with the address of c: a process of this node, one of a pod of this node,
// or else a host elsewhere.
func (d *Datapath) clientAt(o ExplainOptions, c *client) (*client, error) {
	from := c.from
	here, err := hasAddr(from.Addr())
	if err != nil {
		return nil, err
	}
	if here {
		own, err := inNetns(nil, fmt.Sprintf("a process of this node, its socket bound to %s", from.Addr()))
		own.from, own.hasPort = from, c.hasPort
		if err != nil || c.noSocket == "" {
			return own, err
		}
		return own, d.leaves(own, o.To.Addr(), c.noSocket)
	}
	ifindex, name := routeTo(from.Addr())
	c.kind, c.ifindex = clientPacket, ifindex
	if ifindex == 0 {
		c.text = fmt.Sprintf("%s, to which no route leads", from.Addr())
		c.unserved = "no device expects packets from there"
		return c, nil
	}
	c.text = fmt.Sprintf("a host elsewhere, %s, whose packets come in by %s: the route back leads there", from.Addr(), name)
	if err := d.seen(c, name); err != nil {
		return c, err
	}
	if c.unserved == "" {
		return d.behind(o, c, name)
	}
	if sandbox, err := datapath.Sandbox(d.maps, ifindex, from.Addr()); err != nil || sandbox != nil {
		if err == nil {
			c.kind, c.ifindex, c.unserved = clientPod, sandbox.Attrs().Index, ""
			c.text = fmt.Sprintf("a pod of this node, %s, whose sockets the kernel does not see: its packets are served at %s", from.Addr(), sandbox.Attrs().Name)
			err = d.seen(c, sandbox.Attrs().Name)
		}
		return c, err
	}
	ns, err := netnsOf(from.Addr())
	if err != nil || ns == nil {
		return c, err
	}
	peers, err := peersOf(ns)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return d.pod(o, ns, c, peers)
}

// behind returns c, whose packets come in by a device that is served, or the process of a pod with that address whose
// packets do not come by the device to which its route leads: such a device may lead to all pods.
func (d *Datapath) behind(o ExplainOptions, c *client, name string) (*client, error) {
	if ns, _ := netnsOf(c.from.Addr()); ns != nil { // one that cannot be looked into is none of a host elsewhere
		peers, err := peersOf(ns)
		if err == nil && !slices.Contains(peers, c.ifindex) {
			return d.pod(o, ns, c, peers)
		}
		if err = errors.Join(err, ns.Close()); err != nil {
			return nil, err
		}
	}
	c.text += c.device.xdpText()
	return c, nil
}

// peersOf returns the ends that the calling thread's network namespace has of a pod's devices.
func peersOf(pod *netns.Namespace) (peers []int, err error) {
	here, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer here.Close()
	err = pod.Run(func() error {
		peers, err = datapath.Peers(here)
		return err
	})
	return peers, err
}

// pod returns a process of a network namespace of this node with the address of c, whose packets come in by
// these devices, or by that of c.
func (d *Datapath) pod(o ExplainOptions, ns *netns.Namespace, c *client, peers []int) (*client, error) {
	pod, err := inNetns(ns, fmt.Sprintf("a process of a pod of this node, which has the address %s", c.from.Addr()))
	if err != nil {
		return pod, err
	}
	alone, err := d.leftAlone(pod.cookie)
	if err != nil || !alone && c.noSocket == "" {
		if pod.from = c.from; !c.hasPort {
			pod.from = netip.AddrPortFrom(c.from.Addr(), 0)
		}
		return pod, err
	}
	pod.kind, pod.from, pod.hasPort = clientPod, c.from, c.hasPort
	pod.ifindex = c.ifindex
	for _, i := range peers {
		if mode, err := datapath.Attached(d.bpffs, i); err != nil || mode != "" {
			pod.ifindex = i
			break
		}
	}
	l, err := netlink.LinkByIndex(pod.ifindex)
	if err != nil {
		return pod, err
	}
	pod.text += ", " + cmp.Or(c.noSocket, "whose sockets are left alone")
	if err := d.seen(pod, l.Attrs().Name); err != nil || pod.unserved == "" {
		pod.text += ": its packets are served at " + l.Attrs().Name
		return pod, err
	}
	return pod, d.forwarded(pod, o.To.Addr())
}

// forwarded makes c, a pod whose device has no program, one whose packets are seen where the host's stack forwards
// them by a device that has.
func (d *Datapath) forwarded(c *client, to netip.Addr) error {
	r := c.route(to, c.comesIn())
	if r.ifindex == 0 {
		return nil
	}
	leaving := *c
	leaving.kind, leaving.ifindex, leaving.unserved = clientNode, r.ifindex, ""
	if err := d.seen(&leaving, r.device); err != nil || leaving.unserved != "" {
		return err
	}
	*c = leaving
	c.text += ", which leave by " + r.device
	return nil
}

// leftAlone reports whether the programs leave the sockets of a network namespace alone, which is
// not the node's, and serve its packets.
func (d *Datapath) leftAlone(cookie uint64) (bool, error) {
	alone, err := datapath.HostSocketsOnly(d.bpffs)
	if err != nil || alone {
		return alone, err
	}
	namespaces, err := devicemap.New(d.maps).NAT()
	return len(namespaces[cookie]) > 0, err
}

// seen finds out which programs see the client's packets.
func (d *Datapath) seen(c *client, name string) error {
	if c.from.Port() == 0 {
		c.from = netip.AddrPortFrom(c.from.Addr(), firstPort)
	}
	if c.kind == clientPod {
		mode, err := datapath.Attached(d.bpffs, c.ifindex)
		if mode == "" {
			c.unserved = fmt.Sprintf("no program serves packets at %s", name)
		}
		return err
	}
	devices, err := d.devices()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(devices, func(v Device) bool { return v.Ifindex == c.ifindex && v.Attach != "" })
	if at < 0 {
		c.unserved = fmt.Sprintf("no program serves packets at %s: it is none of the devices that face clients (see beeline status)", name)
		return nil
	}
	c.device = &devices[at]
	return nil
}

// xdpText says whether packets that come in by the device meet XDP before tc.
func (v *Device) xdpText() string {
	switch {
	case v == nil:
		return ""
	case v.XDP != string(datapath.XDPOff):
		return fmt.Sprintf(", XDP (%s) sees them before tc", v.XDP)
	case v.NoXDP != "":
		return fmt.Sprintf(", tc alone sees them, without XDP: %s", v.NoXDP)
	}
	return ", tc alone sees them, without XDP"
}

// hasAddr reports whether an address is of the calling thread's network namespace.
func hasAddr(addr netip.Addr) (bool, error) {
	list, err := rtnl.Addrs(nil)
	if err != nil {
		return false, err
	}
	for _, a := range list {
		got, ok := netip.AddrFromSlice(a.IP)
		if got = got.Unmap(); ok && (got == addr || got.IsLoopback() && addr.IsLoopback() && got.Is4() == addr.Is4()) {
			return true, nil
		}
	}
	return false, nil
}

// netnsOf returns the network namespace with an address that the calling thread's has a device to:
// that of a pod; nil when there is none. The error is that of one that cannot be looked into, when
// no other has the address.
func netnsOf(addr netip.Addr) (found *netns.Namespace, err error) {
	var having []*netns.Namespace
	err = netns.Each(func() error {
		if here, err := hasAddr(addr); err != nil || !here {
			return err
		}
		n, err := netns.Current()
		if err == nil {
			having = append(having, n)
		}
		return err
	})
	if _, listed := rtnl.Links(); listed != nil { // the kernel gives the others ids then
		err = errors.Join(err, listed)
	}
	for _, n := range having {
		id, errID := n.ID()
		if found == nil && errID == nil && id >= 0 {
			found = n
			continue
		}
		err = errors.Join(err, n.Close())
	}
	if found != nil {
		return found, nil
	}
	return nil, err
}

// routeTo returns the device by which packets to an address leave; 0 when there is none.
func routeTo(addr netip.Addr) (ifindex int, name string) {
	routes, err := netlink.RouteGet(addr.AsSlice())
	if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST {
		return 0, ""
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return 0, ""
	}
	return l.Attrs().Index, l.Attrs().Name
}
