package packets_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// sourcePort returns the source port of a packet without options.
func sourcePort(packet []byte, addr netip.Addr) uint16 {
	return binary.BigEndian.Uint16(packet[ethernetSize+headerSize(addr):])
}

// newBigBench is newXDPBench with room for so many flows.
func newBigBench(t *testing.T, flows uint32) *xdpBench {
	t.Helper()
	sizes := lab.Sizes
	sizes.Flows = flows
	return newXDPBenchWith(t, lab.AgentOptions{Sizes: sizes})
}

// runAll runs the program on each packet until next returns none, and hands what comes out to
// got, which stops it by an error. All of it is one visit of the host's network namespace.
func (b *xdpBench) runAll(t *testing.T, next func(i int) []byte, got func(i int, verdict uint32, out []byte) error) error {
	t.Helper()
	program := b.programs.program(t, b.program)
	return b.Run(func() error {
		out := make([]byte, 2048)
		for i := 0; ; i++ {
			packet := next(i)
			if packet == nil {
				return nil
			}
			options := &ebpf.RunOptions{Data: packet, DataOut: out,
				Context: xdpContext{DataEnd: uint32(len(packet)), Ingress: uint32(b.device.Ifindex)}}
			verdict, err := program.Run(options)
			if err == nil {
				err = got(i, verdict, options.DataOut)
			}
			if err != nil {
				return fmt.Errorf("packet %d: %w", i, err)
			}
		}
	})
}

// TestSourcePorts60000: one backend has 60,000 connections at a time from one address of this node,
// each from a source port of its own, none of them reserved; ephemeral ports are used last. When all
// are in use, `Exhausted` names the backend.
func TestSourcePorts60000(t *testing.T) {
	t.Parallel()
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		t.Run(map[byte]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP"}[protocol], func(t *testing.T) {
			t.Parallel()
			tier.Slow(t, "60,000 flows; TestSourcePortsRunOut has fewer")
			const flows, all, reserved = 60_000, 1<<16 - 1024, 100
			b := newBigBench(t, 1<<19)
			ports := bpfmap.DefaultSourcePorts
			for port := 2000; port < 2000+reserved; port++ {
				ports.Reserved[port/64] |= 1 << (port % 64)
			}
			b.maps.SetSourcePorts(ports)
			seen := make(map[uint16]bool)
			exhausted := false
			// 30 clients that use the same ports.
			client := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i%30)}) }
			err := b.runAll(t, func(i int) []byte {
				if i == all || exhausted {
					return nil
				}
				f := frame{from: netip.AddrPortFrom(client(i), uint16(30000+i/30)), to: virtual[4], protocol: protocol, flags: flagSYN, payload: "a payload of some length"}
				return f.bytes()
			}, func(i int, verdict uint32, out []byte) error {
				if exhausted = verdict == xdpDrops; exhausted {
					return nil
				}
				if verdict != xdpSends {
					return fmt.Errorf("verdict %d", verdict)
				}
				port := sourcePort(out, client(i))
				switch {
				case seen[port]:
					return fmt.Errorf("port %d is that of another flow", port)
				case port >= 2000 && port < 2000+reserved:
					return fmt.Errorf("port %d is reserved", port)
				case port >= ports.LocalMin && port <= ports.LocalMax && len(seen) < 20_000:
					return fmt.Errorf("port %d is one of the node's own connections", port)
				}
				seen[port] = true
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if want := all - reserved; len(seen) != want {
				t.Errorf("%d flows, want %d", len(seen), want)
			}
			list, err := flowmap.New(b.maps).Exhausted()
			if err != nil || len(list) != 1 || list[0].Backend != xdpBackend[4] || list[0].Count == 0 || !list[0].Known {
				t.Errorf("exhausted: %+v, %v", list, err)
			}
		})
	}
}

// TestSourcePortsOfTheNode: a client's port outside of the ephemeral range is kept, also after the
// range has changed.
func TestSourcePortsOfTheNode(t *testing.T) {
	t.Parallel()
	b := newXDPBench(t)
	ask := func(port uint16) uint16 {
		f := frame{from: netip.AddrPortFrom(crafted[4].Addr(), port), to: virtual[4], protocol: unix.IPPROTO_UDP, payload: "a payload of some length"}
		verdict, out := b.run(t, f.bytes())
		if verdict != xdpSends {
			t.Fatalf("verdict %d", verdict)
		}
		return sourcePort(out, f.to.Addr())
	}
	if got := ask(40000); got >= 32768 && got <= 60999 {
		t.Errorf("port 40000 becomes %d, one of the node's own connections", got)
	}
	b.maps.SetSourcePorts(bpfmap.SourcePorts{LocalMin: 10000, LocalMax: 20000})
	if got := ask(40001); got != 40001 {
		t.Errorf("port 40001 becomes %d", got)
	}
	if got := ask(15000); got >= 10000 && got <= 20000 {
		t.Errorf("port 15000 becomes %d, one of the node's own connections", got)
	}
}

// TestClientKeepsItsPort: without SNAT the backend sees the client's source port, too.
func TestClientKeepsItsPort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, f := range requests() {
		for _, port := range []uint16{1, 123, 4242, 40000, 60999, 65535} {
			f.from = netip.AddrPortFrom(f.from.Addr(), port)
			if len(f.options) > 0 {
				continue
			}
			if verdict, out := b.run(t, "bl_ingress", f.bytes()); verdict != passes || sourcePort(out, f.to.Addr()) != port {
				t.Errorf("%s from port %d: verdict %d, the backend sees %d", name, port, int32(verdict), sourcePort(out, f.to.Addr()))
			}
		}
	}
}

// establishFlow runs the handshake of a TCP connection, or a question and an answer, and
// returns the client's next packet and the backend's.
func (b *bench) establishFlow(t *testing.T, f frame) (client, reply frame) {
	t.Helper()
	const clientISN, backendISN = 1_000_000, 3_000_000_000
	client, reply = f, f
	client.seq = clientISN
	b.run(t, "bl_ingress", client.bytes())
	reply.from, reply.to = backend[familyOf(f)], f.from
	reply.flags, reply.seq, reply.ack = flagSYN|flagACK, backendISN, clientISN+1
	b.run(t, "bl_egress", reply.bytes())
	client.flags, client.seq, client.ack = flagACK, clientISN+1, backendISN+1
	b.run(t, "bl_ingress", client.bytes())
	reply.flags, reply.seq = flagACK, backendISN+1
	return client, reply
}

func tcpFlow(family byte, port uint16) frame {
	return frame{from: netip.AddrPortFrom(crafted[family].Addr(), port), to: virtual[family], protocol: unix.IPPROTO_TCP, flags: flagSYN}
}

// wantState looks for the flow from a port of the client.
func (b *bench) wantState(t *testing.T, port uint16, what string, want flowmap.State) {
	t.Helper()
	var found []flowmap.State
	flows, _ := allFlows(t, b.maps)
	for _, f := range flows {
		if f.Client.Port() == port {
			found = append(found, f.State)
		}
	}
	if len(found) != 1 || found[0] != want {
		t.Errorf("%s: the flow is %v, want %v", what, found, want)
	}
}

// TestBlindACK: an ACK with a wrong acknowledgement number does not establish a flow; the right one
// does, and so does data of the backend, whose SYN cookie may have changed.
func TestBlindACK(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, family := range families {
		port := 5000 + uint16(family)
		f := tcpFlow(family, port)
		f.seq = 77
		b.run(t, "bl_ingress", f.bytes())
		reply := f
		reply.from, reply.to, reply.flags, reply.seq, reply.ack = backend[family], f.from, flagSYN|flagACK, 3_000_000_000, 78
		b.run(t, "bl_egress", reply.bytes())
		f.flags, f.seq, f.ack = flagACK, 78, 12345
		b.run(t, "bl_ingress", f.bytes())
		b.wantState(t, port, "a blind ACK", flowmap.StateSynReceived)
		pure := reply
		pure.flags, pure.seq = flagACK, 3_000_000_001
		awaitSecond(t)
		b.run(t, "bl_egress", pure.bytes())
		b.wantState(t, port, "an ACK of the backend, which answers what is out of its window", flowmap.StateSynReceived)
		data := f
		data.payload = "of the client"
		data.ack = 3_000_000_001
		if family == 6 {
			b.run(t, "bl_ingress", data.bytes())
			b.wantState(t, port, "an ACK", flowmap.StateEstablished)
			continue
		}
		pure.payload = "of the backend"
		awaitSecond(t)
		b.run(t, "bl_egress", pure.bytes())
		b.wantState(t, port, "data of the backend", flowmap.StateEstablished)
	}
}

// TestForgedRST: a RST or FIN whose sequence number is out of window does not change the flow; those
// of client and backend close it.
func TestForgedRST(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	port := uint16(5000)
	for _, family := range families {
		for _, byClient := range []bool{true, false} {
			port++
			client, reply := b.establishFlow(t, tcpFlow(family, port))
			f, program := client, "bl_ingress"
			if !byClient {
				f, program = reply, "bl_egress"
			}
			right, acknowledged := f.seq, f.ack
			for i := range uint32(64) {
				f.seq = right + 1<<20 + i*0x04000000&0xf7ffffff
				f.ack = acknowledged + 1<<20
				for _, flags := range []byte{flagRST, flagRST | flagACK, flagFIN | flagACK} {
					f.flags = flags
					b.run(t, program, f.bytes())
					b.wantState(t, port, fmt.Sprintf("flags %#x at %d of %d", flags, f.seq, right), flowmap.StateEstablished)
				}
			}
			f.seq, f.ack, f.flags = right, acknowledged, flagRST
			b.run(t, program, f.bytes())
			b.wantState(t, port, "the right reset", flowmap.StateClosed)
		}
	}
}

// TestEndOfManyData: the FIN or RST of a backend counts while more of its data than is near is not acknowledged.
func TestEndOfManyData(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	port := uint16(5100)
	for _, family := range families {
		for flags, want := range map[byte]flowmap.State{flagFIN | flagACK: flowmap.StateBackendClosing, flagRST | flagACK: flowmap.StateClosed} {
			port++
			_, reply := b.establishFlow(t, tcpFlow(family, port))
			reply.flags = flags
			reply.seq += 1 << 20
			b.run(t, "bl_egress", reply.bytes())
			b.wantState(t, port, fmt.Sprintf("flags %#x", flags), want)
		}
	}
}

// takeOut removes an entry and returns its key and value.
func takeOut(t *testing.T, m *ebpf.Map, reply bool) (key, value []byte) {
	t.Helper()
	for entries := m.Iterate(); entries.Next(&key, &value); {
		if isReply(value) == reply {
			if err := m.Delete(key); err != nil {
				t.Fatal(err)
			}
			return key, value
		}
	}
	t.Fatal("no such entry")
	return nil, nil
}

// TestForwardMadeAgain: a UDP flow whose forward entry is restored by a reply keeps its backend.
func TestForwardMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ports := fmt.Sprintf("t:%d/TCP,u:%d/UDP", lab.BackendPort, lab.BackendPort)
	m := pinned(t, b.host.BPFFS, "bl_flow")
	for _, family := range families {
		var addrs []netip.Addr
		for addr := backend[family].Addr(); len(addrs) < 8; addr = addr.Next() {
			addrs = append(addrs, addr)
		}
		b.agent.Apply(lab.Slice("web", ports, addrs...))
		f := frame{from: crafted[family], to: virtual[family], protocol: unix.IPPROTO_UDP, payload: "hello"}
		_, out := b.run(t, "bl_ingress", f.bytes())
		to := ethernetSize + headerSize(f.to.Addr()) - f.to.Addr().BitLen()/8
		addr, _ := netip.AddrFromSlice(out[to : ethernetSize+headerSize(f.to.Addr())])
		for range 8 {
			takeOut(t, m, false)
			awaitSecond(t)
			reply := f
			reply.from, reply.to = netip.AddrPortFrom(addr, lab.BackendPort), f.from
			b.run(t, "bl_egress", reply.bytes())
			_, again := b.run(t, "bl_ingress", f.bytes())
			if got, _ := netip.AddrFromSlice(again[to : ethernetSize+headerSize(f.to.Addr())]); got != addr {
				t.Fatalf("the flow of %s goes on to %s", addr, got)
			}
		}
		takeOut(t, m, false)
		takeOut(t, m, true)
	}
}

// TestStolenSourcePort: a flow whose reply entry was evicted, and whose source port another flow has
// since, gets another port: neither gets the other's replies.
func TestStolenSourcePort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	m := pinned(t, b.host.BPFFS, "bl_flow")
	for _, family := range families {
		first := frame{from: crafted[family], to: virtual[family], protocol: unix.IPPROTO_UDP, payload: "hello"}
		b.run(t, "bl_ingress", first.bytes())
		key, value := takeOut(t, m, true)
		// The reply entry of another flow of the client, to another Service.
		value[15]++
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
		awaitSecond(t)
		verdict, out := b.run(t, "bl_ingress", first.bytes())
		if port := sourcePort(out, first.to.Addr()); verdict != passes || port == first.from.Port() {
			t.Errorf("verdict %d, port %d", int32(verdict), port)
		}
		got := make([]byte, len(value))
		if err := m.Lookup(key, &got); err != nil || got[15] != value[15] {
			t.Errorf("the other flow's entry is % x, %v", got, err)
		}
		takeOut(t, m, true)
		takeOut(t, m, true)
		takeOut(t, m, false)
	}
}
