package model_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// service is a Service of port 80, TCP and UDP, in one family.
type service struct {
	name     string
	addr     netip.AddrPort
	backends []netip.AddrPort
	// far: the backends are on other nodes.
	far bool
	// direct: it is no Service, but a backend's own address. Clients' packets there are
	// translated only where a flow has their address and port already.
	direct bool
}

// directTo returns what stands for the first backend's own address.
func directTo(s service) service {
	return service{name: "direct", addr: s.backends[0], backends: s.backends[:1], direct: true}
}

// servicesOf returns those of a family. Two each have the same backends.
func servicesOf(family int) []service {
	addrs := func(list ...string) (all []netip.AddrPort) {
		for _, s := range list {
			all = append(all, netip.MustParseAddrPort(s))
		}
		return all
	}
	if family == 4 {
		far, near := addrs("203.0.113.7:8080", "203.0.113.8:8080"), addrs("10.77.0.1:8080", "10.77.0.2:8080")
		return []service{
			{"far", netip.MustParseAddrPort("10.96.0.1:80"), far, true, false},
			{"also", netip.MustParseAddrPort("10.96.0.2:80"), far, true, false},
			{"near", netip.MustParseAddrPort("10.96.0.3:80"), near, false, false},
			{"beside", netip.MustParseAddrPort("10.96.0.4:80"), near, false, false},
		}
	}
	far, near := addrs("[2001:db8:7::7]:8080", "[2001:db8:7::8]:8080"), addrs("[fd77::1]:8080", "[fd77::2]:8080")
	return []service{
		{"far", netip.MustParseAddrPort("[fd96::1]:80"), far, true, false},
		{"also", netip.MustParseAddrPort("[fd96::2]:80"), far, true, false},
		{"near", netip.MustParseAddrPort("[fd96::3]:80"), near, false, false},
		{"beside", netip.MustParseAddrPort("[fd96::4]:80"), near, false, false},
	}
}

// node is a host that serves Services at its uplink, with programs that are run on packets
// but attached nowhere.
type node struct {
	host     *lab.Host
	maps     *bpfmap.Maps
	programs map[string]*ebpf.Program
	uplink   int
	cpus     []int
	noSums   bool // the kernel does not know checksumComplete
}

// knowsSums reports whether the kernel takes checksumComplete.
func (n *node) knowsSums() bool {
	p := packet{from: netip.MustParseAddrPort("198.51.100.1:1"), to: netip.MustParseAddrPort("198.51.100.2:1"), protocol: unix.IPPROTO_UDP}
	_, _, err := n.run("bl_ingress", p.ip(), true)
	return !errors.Is(err, unix.EINVAL)
}

// The MAC addresses of the uplink and of the gateway behind it.
var uplinkMAC, gatewayMAC = net.HardwareAddr{2, 0, 0, 0, 1, 2}, net.HardwareAddr{2, 0, 0, 0, 1, 1}

func newNode(t testing.TB) *node {
	t.Helper()
	h := lab.NewHost(t)
	h.SetSysctl("ipv4/ip_forward", "1")
	h.SetSysctl("ipv6/conf/all/forwarding", "1")
	sizes := lab.Sizes
	sizes.Flows = 1 << 12 // the table is read after each packet
	a := h.Serve(lab.AgentOptions{Sizes: sizes})
	v4, v6 := servicesOf(4), servicesOf(6)
	const ports = "t:8080/TCP,u:8080/UDP"
	for i := range v4 {
		a.Apply(lab.Service(v4[i].name, fmt.Sprintf(`{clusterIPs: [%s, "%s"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`,
			v4[i].addr.Addr(), v6[i].addr.Addr())),
			lab.Slice(v4[i].name, ports, v4[i].backends[0].Addr(), v4[i].backends[1].Addr()),
			lab.Slice(v6[i].name, ports, v6[i].backends[0].Addr(), v6[i].backends[1].Addr()))
	}
	n := &node{host: h, maps: a.Maps()}
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	for cpu := range 64 * len(may) {
		if may.IsSet(cpu) {
			n.cpus = append(n.cpus, cpu)
		}
	}
	if err := h.Run(n.prepareUplink); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.programs, err = datapath.LoadDevices(n.maps, datapath.Constants{}, "bl_ingress", "bl_egress"); err != nil {
		t.Fatal(err)
	}
	if n.programs["bl_xdp"], err = datapath.LoadXDP(n.maps, datapath.Constants{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range n.programs {
			p.Close()
		}
	})
	if err := h.Run(func() error { n.noSums = !n.knowsSums(); return nil }); err != nil {
		t.Fatal(err)
	}
	if n.noSums {
		t.Log("the kernel cannot check sums that devices compute (Linux 6.11)")
	}
	return n
}

// prepareUplink makes the uplink one that XDP can send by.
func (n *node) prepareUplink() error {
	l, err := netlink.LinkByName(lab.Uplink)
	if err != nil {
		return err
	}
	n.uplink = l.Attrs().Index
	if err := netlink.LinkSetHardwareAddr(l, uplinkMAC); err != nil {
		return err
	}
	for _, gateway := range []netip.Addr{lab.Outside4, lab.Outside6} {
		if err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: n.uplink, State: netlink.NUD_PERMANENT, IP: gateway.AsSlice(), HardwareAddr: gatewayMAC,
		}); err != nil {
			return err
		}
	}
	return errors.Join(
		devicemap.New(n.maps).Put(devicemap.Device{
			ID: 1, Name: lab.Uplink, Ifindex: n.uplink, Root: n.uplink, MTU: 1500,
			Addr4: lab.Node4, Addr6: lab.Node6, XDPSend: true,
		}),
		devicemap.New(n.maps).SetMACs(map[int]devicemap.MAC{n.uplink: devicemap.MAC(uplinkMAC)}))
}

// effect is what becomes of a packet.
type effect string

const (
	passed  effect = "passed on" // to the host's stack, or from it to the wire
	sent    effect = "sent"      // by the programs
	dropped effect = "dropped"
)

// The verdicts of the programs.
var (
	tcEffects  = map[uint32]effect{0xffffffff: passed, 2: dropped, 7: sent}
	xdpEffects = map[uint32]effect{1: dropped, 2: passed, 3: sent, 4: sent}
)

// tcContext is the beginning of struct __sk_buff of linux/bpf.h, xdpContext is struct
// xdp_md.
type (
	tcContext struct {
		Unset          [10]uint32
		Ifindex, Index uint32
	}
	xdpContext struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }
)

// checksumComplete is BPF_F_TEST_SKB_CHECKSUM_COMPLETE (Linux 6.11): the packet comes with
// the sum of all its bytes, as from a device that computes it, and the kernel checks that it
// is right when the program has ended.
const checksumComplete = 1 << 2

// run runs a program on an IP packet, in the node's namespace.
func (n *node) run(program string, ip []byte, complete bool) (effect, []byte, error) {
	frame := slices.Concat(uplinkMAC, gatewayMAC, []byte{8, 0}, ip)
	if ip[0]>>4 == 6 {
		binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IPV6)
	}
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	effects := tcEffects
	if program == "bl_xdp" {
		options.Context, effects = xdpContext{DataEnd: uint32(len(frame)), Ingress: uint32(n.uplink)}, xdpEffects
	} else {
		options.Context = tcContext{Ifindex: uint32(n.uplink)}
		if complete && !n.noSums {
			options.Flags = checksumComplete
		}
	}
	verdict, err := n.programs[program].Run(options)
	if errors.Is(err, unix.EBADMSG) {
		return "", nil, fmt.Errorf("%s has spoiled the sum of the packet that the device computed", program)
	}
	if err != nil {
		return "", nil, err
	}
	what, ok := effects[verdict]
	if !ok || len(options.DataOut) < ethernetSize {
		return "", nil, fmt.Errorf("%s returns %d and %d bytes", program, int32(verdict), len(options.DataOut))
	}
	return what, options.DataOut[ethernetSize:], nil
}

// receive returns what becomes of a packet that the uplink gets, by XDP first or by tc
// alone.
func (n *node) receive(ip []byte, xdp, complete bool) (effect, []byte, error) {
	if xdp {
		what, out, err := n.run("bl_xdp", ip, false)
		if err != nil || what != passed {
			return what, out, err
		}
		if !slices.Equal(out, ip) {
			return "", nil, fmt.Errorf("XDP passes\n% x, which was\n% x", out, ip)
		}
	}
	return n.run("bl_ingress", ip, complete)
}

// flowKey is what a client knows of its flow.
type flowKey struct {
	client, service netip.AddrPort
	protocol        byte
}

// flows returns the table as people see it, and how many flows have several entries.
func (n *node) flows() (map[flowKey]flowmap.Flow, error) {
	all := make(map[flowKey]flowmap.Flow)
	for batch, err := range flowmap.New(n.maps).Batches(bpf.Clock) {
		if err != nil {
			return nil, err
		}
		for _, f := range batch.Flows {
			key := flowKey{f.Client, f.ServiceAddr, byte(f.Protocol)}
			if _, twice := all[key]; twice {
				return nil, fmt.Errorf("%v is twice in the tables", key)
			}
			all[key] = f
		}
	}
	return all, nil
}

// forget removes flows, of all of them for nil, as the agent does when they are over.
// half removes the forward entry only, as an eviction does.
func (n *node) forget(key *flowKey, half bool) error {
	all, err := n.flows()
	if err != nil {
		return err
	}
	for k, f := range all {
		if key != nil && k != *key {
			continue
		}
		if half {
			f.Source = netip.AddrPort{}
		}
		if err := flowmap.New(n.maps).Delete(&f); err != nil {
			return err
		}
	}
	if key != nil {
		return nil
	}
	for batch, err := range flowmap.New(n.maps).Batches(bpf.Clock) {
		if err != nil {
			return err
		}
		for i := range batch.Replies {
			if _, err := flowmap.New(n.maps).ExpireReply(&batch.Replies[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
