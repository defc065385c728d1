package packets_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// martians are addresses that no other host has, the last ones before and behind them aside.
var martians = map[byte][]string{
	4: {"0.0.0.0", "0.255.255.255", "127.0.0.1", "127.255.255.255", "224.0.0.1", "239.255.255.255", "255.255.255.255"},
	6: {"::", "::1", "ff02::1", "ff0e::1"},
}

// TestProgramMartians: what comes from an address that no other host has begins no flow, and gets no
// answer; what comes from the addresses beside them does.
func TestProgramMartians(t *testing.T) {
	t.Parallel()
	b, x := newBench(t), newXDPBench(t)
	served := map[byte][]string{4: {"1.0.0.0", "126.255.255.255", "128.0.0.0", "223.255.255.255", "240.0.0.1"}, 6: {"::2", "::1:0:1", "fe80::1"}}
	types := map[byte]byte{4: 8, 6: 128}
	for _, family := range families {
		for name, protocol := range protocols {
			for _, martian := range []bool{true, false} {
				for _, addr := range map[bool][]string{true: martians[family], false: served[family]}[martian] {
					what := fmt.Sprintf("%s from %s", name, addr)
					f := frame{from: netip.AddrPortFrom(netip.MustParseAddr(addr), 4242), to: virtual[family], protocol: protocol, flags: flagSYN, payload: "a payload of some length"}
					undeclared := f
					undeclared.to = netip.AddrPortFrom(f.to.Addr(), 81)
					for what, packet := range map[string][]byte{
						what: f.bytes(), what + " to an undeclared port": undeclared.bytes(),
						"a ping from " + addr: echoPacket(f.from.Addr(), f.to.Addr(), types[family]),
					} {
						verdict, out := b.run(t, "bl_ingress", packet)
						if untouched := verdict == passes && bytes.Equal(out, packet); untouched != martian {
							t.Errorf("%s: verdict %d, untouched: %t", what, int32(verdict), untouched)
						}
					}
					if verdict, _ := x.run(t, f.bytes()); verdict != map[bool]uint32{true: xdpPasses, false: xdpSends}[martian] {
						t.Errorf("%s: verdict %d of XDP", what, verdict)
					}
				}
			}
		}
	}
}

// TestProgramForAllHosts: a frame for all or many hosts of a link passes untouched where it comes in;
// where it leaves, it is served.
func TestProgramForAllHosts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, f := range requests() {
		for what, to := range map[string]net.HardwareAddr{
			"all": {255, 255, 255, 255, 255, 255}, "many": {1, 0, 0x5e, 1, 2, 3}, "many of IPv6": {0x33, 0x33, 0, 0, 0, 1},
		} {
			packet := toMAC(f.bytes(), to)
			for _, program := range []string{"bl_ingress", "bl_xdp"} {
				if verdict, out := b.run(t, program, packet); verdict != letsPass[program] || !bytes.Equal(out, packet) {
					t.Errorf("%s for %s hosts: verdict %d of %s, packet\n% x, was\n% x", name, what, int32(verdict), program, out, packet)
				}
			}
		}
		reply := f
		reply.from, reply.to, reply.flags = backend[familyOf(f)], f.from, flagSYN|flagACK
		b.run(t, "bl_ingress", f.bytes())
		packet := toMAC(reply.bytes(), net.HardwareAddr{255, 255, 255, 255, 255, 255})
		if verdict, out := b.run(t, "bl_egress", packet); verdict != passes || bytes.Equal(out, packet) {
			t.Errorf("reply of %s for all hosts: verdict %d, untouched: %t", name, int32(verdict), bytes.Equal(out, packet))
		}
	}
}

// TestProgramMapped: a packet of IPv6 with v4-mapped addresses is none of an IPv4 Service, nor of
// its flows, and an error that quotes one is none about them.
func TestProgramMapped(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	mapped := func(at netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(at.Addr().As16()), at.Port())
	}
	for name, protocol := range protocols {
		known := frame{from: crafted[4], to: virtual[4], protocol: protocol, flags: flagSYN, payload: "a payload of some length"}
		b.run(t, "bl_ingress", known.bytes())
		reply := known
		reply.from, reply.to, reply.flags = backend[4], known.from, flagSYN|flagACK
		for what, ends := range map[string][2]netip.AddrPort{
			"from and to":  {mapped(crafted[4]), mapped(virtual[4])},
			"to":           {crafted[6], mapped(virtual[4])},
			"from":         {mapped(crafted[4]), virtual[6]},
			"of a backend": {mapped(reply.from), mapped(reply.to)},
		} {
			what := fmt.Sprintf("%s, mapped addresses: %s", name, what)
			f := frame{from: ends[0], to: ends[1], protocol: protocol, flags: flagSYN, payload: known.payload}
			b.wantUntouched(t, what, f.bytes())
			error := echoPacket(crafted[6].Addr(), ends[0].Addr(), 1)
			quoted := f.bytes()[ethernetSize:]
			binary.BigEndian.PutUint16(error[ethernetSize+4:], uint16(8+len(quoted)))
			b.wantUntouched(t, what+", quoted in an error", append(error[:ethernetSize+48:ethernetSize+48], quoted...))
			f.extension, f.options = unix.IPPROTO_DSTOPTS, extensions(protocol, 8, unix.IPPROTO_DSTOPTS)
			b.wantUntouched(t, what+", with an extension", f.bytes())
		}
	}
	b.wantUntouched(t, "a ping to a mapped address", echoPacket(crafted[6].Addr(), mapped(virtual[4]).Addr(), 128))
	b.wantUntouched(t, "a ping from a mapped address", echoPacket(mapped(crafted[4]).Addr(), virtual[6].Addr(), 128))
}

// TestProgramSourceFrontend: a datagram from outside whose source is a frontend, or a NodePort at a
// node's address, begins no flow. Other ports of these addresses, and other protocols, are served.
func TestProgramSourceFrontend(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.agent.Apply(lab.Service("shown", `{type: NodePort, clusterIPs: [10.96.0.2, "fd96::2"], externalIPs: [198.51.100.1, "fd98::1"],`+
		` ports: [{name: u, port: 53, protocol: UDP, nodePort: 30053}]}`))
	node := map[byte]netip.Addr{4: lab.Node4, 6: lab.Node6}
	external := externalIP(1)
	for _, family := range families {
		for from, drops := range map[netip.AddrPort]bool{
			virtual[family]: true,
			netip.AddrPortFrom(external[family/6], 53):            true,
			netip.AddrPortFrom(node[family], 30053):               true,
			netip.AddrPortFrom(virtual[family].Addr(), 81):        false,
			netip.AddrPortFrom(external[family/6], 80):            false,
			netip.AddrPortFrom(node[family], 30054):               false,
			netip.AddrPortFrom(crafted[family].Addr(), 30053):     false,
			netip.AddrPortFrom(crafted[family].Addr().Next(), 53): false,
		} {
			for name, protocol := range protocols {
				f := frame{from: from, to: virtual[family], protocol: protocol, flags: flagSYN, payload: "a payload of some length"}
				drops := drops && name == "UDP"
				for program, want := range map[string]uint32{"bl_ingress": dropped, "bl_xdp": xdpDrops} {
					before := reasonCount(t, b.maps, "source_frontend")
					verdict, _ := b.run(t, program, f.bytes())
					counted := reasonCount(t, b.maps, "source_frontend") - before
					if (verdict == want) != drops || (counted == 1) != drops {
						t.Errorf("%s from %s: verdict %d of %s, counted %d times, want it dropped: %t", name, from, int32(verdict), program, counted, drops)
					}
				}
			}
		}
	}
}

// TestProgramBalancerSource: a client of the node whose address is the load-balancer IP is let in
// whatever the source ranges; from outside it is not, unless a range has it.
func TestProgramBalancerSource(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	balancer, listed := balancerIP(1), balancerIP(2)
	b.agent.Apply(
		lab.Service("guarded", `{type: LoadBalancer, clusterIPs: [10.96.0.2, "fd96::2"], loadBalancerSourceRanges: [192.0.2.0/30, "2001:db8::/126"],`+
			` ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`,
			fmt.Sprintf(`status: {loadBalancer: {ingress: [{ip: %q}, {ip: %q}]}}`, balancer[0], balancer[1])),
		lab.Service("listed", `{type: LoadBalancer, clusterIPs: [10.96.0.3, "fd96::3"], loadBalancerSourceRanges: [203.0.113.0/24, "fd97::/64"],`+
			` ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`,
			fmt.Sprintf(`status: {loadBalancer: {ingress: [{ip: %q}, {ip: %q}]}}`, listed[0], listed[1])))
	for _, family := range families {
		for name, protocol := range protocols {
			for _, c := range []struct {
				program  string
				from, to netip.Addr
				allowed  bool
			}{
				{"bl_ingress", crafted[family].Addr(), balancer[family/6], true},
				{"bl_ingress", foreign[family].Addr(), balancer[family/6], false},
				{"bl_ingress", balancer[family/6], balancer[family/6], false},
				{"bl_egress", balancer[family/6], balancer[family/6], true},
				{"bl_egress", listed[family/6], balancer[family/6], false},
				{"bl_ingress", listed[family/6], listed[family/6], true},
				{"bl_ingress", balancer[family/6], listed[family/6], true},
			} {
				f := frame{from: netip.AddrPortFrom(c.from, 4242), to: netip.AddrPortFrom(c.to, 80), protocol: protocol, flags: flagSYN, payload: "hello"}
				before := reasonCount(t, b.maps, "source_range")
				verdict, _ := b.run(t, c.program, f.bytes())
				if refused := reasonCount(t, b.maps, "source_range") != before; refused == c.allowed {
					t.Errorf("%s at %s from %s to %s: verdict %d, allowed: %t, want %t", name, c.program, c.from, c.to, int32(verdict), !refused, c.allowed)
				}
			}
		}
	}
}

// TestForgedSYN: a SYN within a connection that one side has closed changes nothing unless its
// sequence number is beyond the client's and no packet has passed in the second; when both have
// closed, any SYN begins the next one.
func TestForgedSYN(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	flows := pinned(t, b.host.BPFFS, "bl_flow")
	port := uint16(5000)
	for _, family := range families {
		for _, closing := range []flowmap.State{flowmap.StateClientClosing, flowmap.StateBackendClosing} {
			port++
			client, reply := b.establishFlow(t, tcpFlow(family, port))
			first, program, last, lastProgram := client, "bl_ingress", reply, "bl_egress"
			if closing == flowmap.StateBackendClosing {
				first, program, last, lastProgram = last, lastProgram, first, program
			}
			first.flags, last.flags = flagFIN|flagACK, flagFIN|flagACK
			b.run(t, program, first.bytes())
			b.wantState(t, port, "one side has closed", closing)
			syn := client
			syn.flags, syn.ack = flagSYN, 0
			for _, before := range []uint32{0, 1, 1 << 16, 1<<31 - 1} {
				setUsed(t, flows, port, 0)
				syn.seq = client.seq - before
				b.run(t, "bl_ingress", syn.bytes())
				b.wantState(t, port, fmt.Sprintf("a SYN %d before", before), closing)
			}
			syn.seq = client.seq + 1<<20
			setUsed(t, flows, port, ^uint32(0)>>1)
			b.run(t, "bl_ingress", syn.bytes())
			b.wantState(t, port, "a SYN beyond, while packets pass", closing)
			setUsed(t, flows, port, 0)
			b.run(t, "bl_ingress", syn.bytes())
			b.wantState(t, port, "a SYN beyond, while none pass", flowmap.StateNew)

			port++
			client, reply = b.establishFlow(t, tcpFlow(family, port))
			client.flags, reply.flags = flagFIN|flagACK, flagFIN|flagACK
			b.run(t, "bl_ingress", client.bytes())
			b.run(t, "bl_egress", reply.bytes())
			b.wantState(t, port, "both sides have closed", flowmap.StateClosed)
			syn = client
			syn.flags, syn.seq = flagSYN, client.seq-1<<20
			b.run(t, "bl_ingress", syn.bytes())
			b.wantState(t, port, "a SYN after that", flowmap.StateNew)
		}
	}
}

// setUsed sets the second of the last packet of the flow from a port of the client.
func setUsed(t *testing.T, flows *ebpf.Map, port uint16, second uint32) {
	t.Helper()
	const portAt, usedAt = 32, 20 // in struct bl_flow_key and bl_flow_forward
	var key, value []byte
	for entries := flows.Iterate(); entries.Next(&key, &value); {
		if isReply(value) || binary.BigEndian.Uint16(key[portAt:]) != port {
			continue
		}
		binary.NativeEndian.PutUint32(value[usedAt:], second)
		if err := flows.Put(key, value); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no flow from port %d", port)
}

// TestServicesAnswerNoServices: a forged datagram from the address and port of a Service to itself,
// or to another one, reaches no backend.
func TestServicesAnswerNoServices(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
	})
	own := c.macOf(t, c.nodes[0].Namespace, uplink)
	port := uint16(5000)
	for i, e := range []endpoint{local, remote} {
		for _, network := range networks[2:] {
			wire := c.nodes[e.node-1].Capture()
			to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
			forged := frame{to: to, protocol: unix.IPPROTO_UDP}
			for j, from := range []netip.AddrPort{
				to, netip.AddrPortFrom(clusterIP(2-i).of(network), 80), netip.AddrPortFrom(externalIP(1).of(network), 80), nodePort(network, 1),
			} {
				forged.from, forged.payload = from, fmt.Sprintf("forged %d %s %s", j, network, strings.Repeat("x", 20))
				if err := sendFrame(c.router, "node1", toMAC(forged.bytes(), own)); err != nil {
					t.Fatal(err)
				}
			}
			// What is served comes after it.
			port++
			f := frame{from: netip.AddrPortFrom(clientAddrs.of(network), port), to: to, protocol: unix.IPPROTO_UDP, payload: "of a client, and longer than a TCP header"}
			client := boundSocket(t, c.client, network, port)
			if got, _, err := client.ReceiveAfter(func() error { return sendFrame(c.router, "node1", toMAC(f.bytes(), own)) }); err != nil {
				t.Errorf("%s to %s: %q, %v", network, e.server(), got, err)
			}
			if wire.Saw(c.addrsOf(e).of(network), "forged") {
				t.Errorf("%s: a datagram from a frontend has reached %s", network, e.server())
			}
		}
	}
}
