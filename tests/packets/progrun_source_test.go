package packets_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// newSNATBench makes a bench of a node whose uplink leads to all backends. Its programs are
// those of tc and XDP.
func newSNATBench(t *testing.T) (*xdpBench, *bench) {
	t.Helper()
	x := newXDPBench(t)
	return x, x.tc()
}

// TestNoSourceAddress: where the device to the backend has no address of the family, new
// connections are dropped and counted, rather than sent from the any-address; and errors
// come from the address that the packet was for.
func TestNoSourceAddress(t *testing.T) {
	t.Parallel()
	x, b := newSNATBench(t)
	device := x.device
	device.Addr4, device.Addr6 = netip.Addr{}, netip.Addr{}
	if err := devicemap.New(x.maps).Put(device); err != nil {
		t.Fatal(err)
	}
	for name, f := range xdpRequests() {
		before := reasonCount(t, x.maps, "no_source_address")
		if verdict, _ := x.run(t, f.bytes()); verdict != xdpDrops {
			t.Errorf("%s: verdict %d of XDP", name, verdict)
		}
		if verdict, _ := b.run(t, "bl_ingress", f.bytes()); verdict != dropped {
			t.Errorf("%s: verdict %d of tc", name, int32(verdict))
		}
		if n := reasonCount(t, x.maps, "no_source_address") - before; n != 2 {
			t.Errorf("%s: counted %d times", name, n)
		}
	}
	if flows, replies := b.flows(t); flows+replies > 0 {
		t.Errorf("%d flows and %d reply entries have come of it", flows, replies)
	}
}

// TestPacketPassedOnce: a forwarded packet of no Service is counted once.
func TestPacketPassedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	before := reasonCount(t, b.maps, "packet_passed")
	for _, family := range families {
		f := frame{from: crafted[family], to: foreign[family], protocol: unix.IPPROTO_UDP, payload: "hello"}
		for _, program := range []string{"bl_ingress", "bl_egress"} {
			if verdict, _ := b.run(t, program, f.bytes()); verdict != passes {
				t.Errorf("verdict %d of %s", int32(verdict), program)
			}
		}
	}
	if n := reasonCount(t, b.maps, "packet_passed") - before; n != 2 {
		t.Errorf("two packets that were forwarded count %d times", n)
	}
}

// TestForwardMadeAgainByAnotherDevice: a flow with SNAT whose forward entry is restored by a reply that comes in by
// another device than its packets leave by goes on with its source.
func TestForwardMadeAgainByAnotherDevice(t *testing.T) {
	t.Parallel()
	x, b := newSNATBench(t)
	side := devicemap.Device{ID: 2, Name: "lo", Ifindex: loopback, MTU: 1500,
		Addr4: netip.MustParseAddr("198.51.100.1"), Addr6: netip.MustParseAddr("2001:db8:51::1")}
	if err := devicemap.New(x.maps).Put(side); err != nil {
		t.Fatal(err)
	}
	m := pinned(t, x.BPFFS, "bl_flow")
	for name, f := range xdpRequests() {
		_, out := b.run(t, "bl_ingress", f.bytes())
		source, to := ends(out, familyOf(f))
		if source.Addr() != nodeAddrOf(f) || to != xdpBackend[familyOf(f)] {
			t.Fatalf("%s: from %s to %s", name, source, to)
		}
		takeOut(t, m, false)
		awaitSecond(t)
		reply := f
		reply.from, reply.to, reply.flags = to, source, flagSYN|flagACK
		b.run(t, "bl_ingress", reply.bytes())
		f.flags = flagACK
		verdict, out := b.run(t, "bl_ingress", f.bytes())
		if verdict != redirect {
			t.Errorf("%s: verdict %d", name, int32(verdict))
		}
		if from, to := ends(out, familyOf(f)); from != source || to != xdpBackend[familyOf(f)] {
			t.Errorf("%s goes on from %s to %s, was from %s", name, from, to, source)
		}
		takeOut(t, m, false)
		takeOut(t, m, true)
	}
}

// TestAffinityOfTheNextSecond: a client keeps its backend when another CPU has stored its last use by
// a clock that is a second ahead.
func TestAffinityOfTheNextSecond(t *testing.T) {
	t.Parallel()
	x := newXDPBench(t)
	for _, family := range families {
		var addrs []netip.Addr
		for addr := xdpBackend[family].Addr(); len(addrs) < 4; addr = addr.Next() {
			addrs = append(addrs, addr)
		}
		x.agent.Apply(lab.Slice("web", "t:8080/TCP,u:8080/UDP", addrs...),
			lab.Service("web", `{clusterIPs: [10.96.0.1, "fd96::1"], sessionAffinity: ClientIP, ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`))
		f := frame{from: crafted[family], to: virtual[family], protocol: unix.IPPROTO_TCP, flags: flagSYN, payload: "x"}
		to := ethernetSize + headerSize(f.to.Addr()) - f.to.Addr().BitLen()/8
		var first []byte
		for i := range uint16(40) {
			f.from = netip.AddrPortFrom(f.from.Addr(), 2000+i)
			verdict, out := x.run(t, f.bytes())
			if verdict != xdpSends {
				t.Fatalf("verdict %d", verdict)
			}
			got := out[to : ethernetSize+headerSize(f.to.Addr())]
			if first == nil {
				first = got
			}
			if !bytes.Equal(got, first) {
				t.Fatalf("connection %d of IPv%d: to % x, the first one to % x", i, family, got, first)
			}
			x.advanceClients(t, time.Second)
		}
	}
}

// advanceClients makes the stamps of clients with session affinity later.
func (x *xdpBench) advanceClients(t *testing.T, by time.Duration) {
	t.Helper()
	m := pinned(t, x.BPFFS, "bl_new_client")
	now, err := bpf.Clock()
	if err != nil {
		t.Fatal(err)
	}
	var key, value []byte
	found := 0
	for entries := m.Iterate(); entries.Next(&key, &value); found++ {
		binary.NativeEndian.PutUint64(value[len(value)-8:], uint64(now+by))
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Fatal("no client is known")
	}
}
