package packets_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// activeFlows returns the active connections of packets that maps count at backends.
func activeFlows(t *testing.T, m *bpfmap.Maps, protocol model.Protocol, backends []netip.Addr) []int {
	t.Helper()
	have, err := servicemap.New(m).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	counts := make([]int, len(backends))
	for id, b := range have.Backends {
		i := slices.Index(backends, b.AddrPort.Addr())
		if i < 0 || have.Names[b.Service].Port.Protocol != protocol {
			continue
		}
		sockets, flows := flowmap.New(m).Active(id, b.Generation)
		if sockets != 0 {
			t.Errorf("%s: %d sockets are counted", b.AddrPort, sockets)
		}
		counts[i] += int(flows)
	}
	return counts
}

// TestLeastConn: forwarded connections go to the endpoint with the fewest, on any node, and are
// counted until they close, also after a restart of the agent.
func TestLeastConn(t *testing.T) {
	t.Parallel()
	for mode, v := range map[string]struct{ flags, networks []string }{
		"tc":  {nil, networks},
		"XDP": {[]string{"--xdp", "generic"}, []string{"tcp4", "udp6"}},
		"DSR": {[]string{"--forwarding-mode", "dsr"}, []string{"tcp6", "udp4"}},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "tc")
			if !tier.All(t) {
				v.networks = []string{"tcp4", "udp6"} // each protocol and each family
			}
			c, a := serveLeastConn(t, v.flags)
			for _, network := range v.networks {
				t.Run(network, func(t *testing.T) { testLeastConn(t, c, a, a, network) })
			}
		})
	}
}

// TestLeastConnFormer: the counts of active connections outlive an upgrade from a version whose maps have another
// layout, and the way back.
func TestLeastConnFormer(t *testing.T) {
	t.Parallel()
	lab.EachFormerAgent(t, func(t *testing.T, _, binary string) {
		c, present := serveLeastConn(t, nil)
		former := *present
		former.former = binary
		testLeastConn(t, c, present, &former, "tcp4")
		testLeastConn(t, c, &former, present, "tcp6")
		testLeastConn(t, c, present, &former, "udp6")
		testLeastConn(t, c, &former, present, "udp4")
	})
}

func serveLeastConn(t *testing.T, flags []string) (*cluster, *agent) {
	t.Helper()
	flags = append([]string{"--algorithm", "lc"}, flags...)
	manifests := func(c *cluster) []string { return c.service(1, "web", "", everywhere) }
	if slices.Contains(flags, "dsr") {
		c := newCluster(t, false)
		return c, c.serveDSR(t, manifests(c), flags[:len(flags)-2]...)
	}
	return serveCluster(t, manifests, flags...)
}

// testLeastConn opens connections and closes them, and in between the agent that serves is killed and another one
// started.
func testLeastConn(t *testing.T, c *cluster, a, next *agent, network string) {
	t.Helper()
	protocol := model.TCP
	if strings.HasPrefix(network, "udp") {
		protocol = model.UDP
	}
	var backends []netip.Addr
	for _, e := range everywhere {
		backends = append(backends, c.addrsOf(e).of(network))
	}
	count := func() []int {
		t.Helper()
		return withMaps(t, a.node, func(m *bpfmap.Maps) []int { return activeFlows(t, m, protocol, backends) })
	}
	var open []*lab.Socket
	active := make([]int, len(everywhere))
	for i := range 10 {
		s, hello := connect(t, c.client, network, nodePort(network, 1))
		at := slices.IndexFunc(everywhere, func(e endpoint) bool { return e.server() == hello.name })
		if at < 0 || active[at] != slices.Min(active) {
			t.Fatalf("with %v active connection %d reached %s", active, i, hello.name)
		}
		active[at]++
		open = append(open, s)
	}
	if got := count(); !slices.Equal(got, active) {
		t.Fatalf("active connections %v, want %v", got, active)
	}
	a.Signal(unix.SIGKILL)
	_ = a.Wait() // killed
	if got := count(); !slices.Equal(got, active) {
		t.Errorf("without an agent: active connections %v, want %v", got, active)
	}
	next.start()
	if got := count(); !slices.Equal(got, active) {
		t.Errorf("with the next agent: active connections %v, want %v", got, active)
	}
	s, hello := connect(t, c.client, network, nodePort(network, 1))
	if at := slices.IndexFunc(everywhere, func(e endpoint) bool { return e.server() == hello.name }); at < 0 || active[at] != slices.Min(active) {
		t.Errorf("with the next agent and %v active a connection reached %s", active, hello.name)
	}
	for _, s := range append(open, s) {
		s.Close()
	}
	if protocol == model.UDP {
		next.evict(func([]byte) bool { return true }) // which the agent's walk finds
	}
	lab.Eventually(t, "no connection is active", func() bool {
		active = count()
		return slices.Max(active) == 0
	})
}

// TestLocality: connections through a node go to one endpoint until it has more than its weight
// of 1 and another one has none.
func TestLocality(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", everywhere) }, "--algorithm", "lblc")
	for _, network := range networks {
		active, server := make([]int, len(everywhere)), -1
		for i := range 2 * len(everywhere) {
			_, hello := connect(t, c.client, network, nodePort(network, 1))
			at := slices.IndexFunc(everywhere, func(e endpoint) bool { return e.server() == hello.name })
			moves := server < 0 || active[server] > 1 && slices.Min(active) == 0
			if at < 0 || moves && active[at] > 0 || !moves && at != server {
				t.Fatalf("%s: with %v active and server %d connection %d reached %s", network, active, server, i, hello.name)
			}
			active[at]++
			server = at
		}
	}
}

// newActiveBench makes a bench whose Service has two backends and an algorithm that counts.
func newActiveBench(t *testing.T, sizes bpfmap.Sizes, algorithm string) (*bench, map[byte][]netip.Addr) {
	t.Helper()
	b := newBenchSized(t, sizes, datapath.Constants{})
	ports := fmt.Sprintf("t:%d/TCP,u:%d/UDP", lab.BackendPort, lab.BackendPort)
	service := lab.Service("web", `{clusterIPs: [10.96.0.1, "fd96::1"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`)
	service = strings.Replace(service, "namespace: default}", `namespace: default, annotations: {service.beeline.io/algorithm: `+algorithm+`}}`, 1)
	backends := map[byte][]netip.Addr{4: {lab.Backend4(1), lab.Backend4(2)}, 6: {lab.Backend6(1), lab.Backend6(2)}}
	b.agent.Apply(service, lab.Slice("web", ports, backends[4]...), lab.Slice("web", ports, backends[6]...))
	return b, backends
}

// sum returns how many active connections of a protocol are counted.
func (b *bench) active(t *testing.T, protocol byte, backends []netip.Addr) (sum int) {
	t.Helper()
	for _, n := range activeFlows(t, b.maps, model.Protocol(protocol), backends) {
		sum += n
	}
	return sum
}

// TestProgramActive: a connection changes the count once when it begins and once when it ends: with a
// retransmitted SYN, at the same hook or another, a FIN, a RST, and a new connection from the same
// port.
func TestProgramActive(t *testing.T) {
	t.Parallel()
	b, backends := newActiveBench(t, lab.Sizes, "lc")
	for _, family := range []byte{4, 6} {
		want := func(what string, n int) {
			t.Helper()
			if got := b.active(t, unix.IPPROTO_TCP, backends[family]); got != n {
				t.Fatalf("IPv%d, %s: %d active connections, want %d", family, what, got, n)
			}
		}
		f := frame{from: crafted[family], to: virtual[family], protocol: unix.IPPROTO_TCP, flags: flagSYN, seq: 1000}
		for _, program := range []string{"bl_xdp", "bl_ingress", "bl_xdp", "bl_ingress"} {
			b.run(t, program, f.bytes())
			want("a SYN at "+program, 1)
		}
		fin := f
		fin.flags, fin.seq = flagFIN|flagACK, 1001
		for range 2 {
			b.run(t, "bl_ingress", fin.bytes())
			want("a FIN", 0)
		}
		f.seq = 5000
		b.run(t, "bl_xdp", f.bytes())
		want("the next SYN from the port", 1)
		rst := f
		rst.flags, rst.seq = flagRST, 5001
		for range 2 {
			b.run(t, "bl_xdp", rst.bytes())
			b.run(t, "bl_ingress", rst.bytes())
			want("a RST", 0)
		}
	}
}

// TestProgramEWMA: packets go by the round-trip times that sockets have had where both are known,
// else by active connections alone.
func TestProgramEWMA(t *testing.T) {
	t.Parallel()
	b, backends := newActiveBench(t, lab.Sizes, "ewma")
	for _, family := range []byte{4, 6} {
		port := crafted[family].Port()
		begin := func(count int, want ...int) {
			t.Helper()
			for range count {
				port++
				f := frame{from: netip.AddrPortFrom(crafted[family].Addr(), port), to: virtual[family], protocol: unix.IPPROTO_TCP, flags: flagSYN, seq: 1000}
				b.run(t, []string{"bl_xdp", "bl_ingress"}[port%2], f.bytes())
			}
			if got := activeFlows(t, b.maps, model.TCP, backends[family]); !slices.Equal(got, want) {
				t.Fatalf("IPv%d: %v active connections, want %v", family, got, want)
			}
		}
		begin(6, 3, 3)
		at := backends[family]
		lab.NoteRTTs(t, b.maps, map[netip.Addr]time.Duration{at[0]: 10 * time.Millisecond, at[1]: time.Millisecond}, 0)
		begin(20, 3, 23)
	}
}

// TestActiveEvicted: after a walk, connections that a full table has evicted are not active, and
// all that are in it are, those of the overflow table among them.
func TestActiveEvicted(t *testing.T) {
	t.Parallel()
	sizes := lab.Sizes
	sizes.Flows = 1 << 10
	b, backends := newActiveBench(t, sizes, "lc")
	begun := 8 * b.maps.MaxFlows()
	for i := range begun {
		f := frame{from: flowClient(i), to: virtual[4], protocol: unix.IPPROTO_TCP, flags: flagSYN, seq: 1000}
		b.run(t, "bl_ingress", f.bytes())
	}
	if got := b.active(t, unix.IPPROTO_TCP, backends[4]); got != begun {
		t.Errorf("%d active connections before a walk, want the %d that have begun", got, begun)
	}
	w := b.watchFlows(t)
	lab.Eventually(t, "as many connections are active as are in the tables", func() bool {
		walk := w.walk(t)
		left := walk.Flows - walk.Expired
		return left < begun/2 && b.active(t, unix.IPPROTO_TCP, backends[4]) == left
	})
}
