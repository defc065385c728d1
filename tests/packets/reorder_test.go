package packets_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// newReorderedCluster makes a cluster with its servers where first fragments come
// last, on their way to node 1 from anywhere and from its pod behind the bridge.
func newReorderedCluster(t *testing.T) (c *cluster, toNode, fromPod *wire) {
	t.Helper()
	c = newCluster(t, false)
	for _, n := range c.namespaces() {
		n.SetChecksumOffload(false)
	}
	toNode = reorder(t, c.router, "nodes", "node1")
	fromPod = reorder(t, c.nodes[0].Namespace, "cni0", "vethbridged")
	c.serveAll(t)
	return c, toNode, fromPod
}

// TestReorder: datagrams whose first fragment comes last reach backends here and on
// the other node, and so do the answers.
func TestReorder(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "tcx")
			c, toNode, fromPod := newReorderedCluster(t)
			startAgent(t, c.nodes[0], append(c.service(1, "near", "", []endpoint{otherLocal}),
				c.service(2, "far", "", []endpoint{remote})...), "--tc-mode", mode)
			c.watchChecksums(t)
			for i, e := range []endpoint{otherLocal, remote} {
				for _, f := range frontends {
					for _, network := range networks[2:] {
						for _, size := range []int{2000, 8000, 60000} {
							payload := strings.Repeat("datagram", size/8)
							to := netip.AddrPortFrom(f.address(i+1).of(network), uint16(f.port(i+1)))
							got, err := exchange(c.client, network, to, payload)
							if err != nil || !strings.HasPrefix(got, e.server()+" ") || !strings.HasSuffix(got, " "+payload) {
								t.Errorf("%s to %s of %s, %d bytes: %d bytes came back: %v", network, f.name, e.server(), size, len(got), err)
							}
						}
					}
				}
			}
			// Replies of the other node pass the first wire too.
			requests := int64(len(frontends) * 2 * 2 * 3)
			if n := toNode.overtook.Load(); n < requests*3/2 {
				t.Errorf("only %d datagrams were reordered on their way to the node", n)
			}
			if n := fromPod.overtook.Load(); n < requests/2 {
				t.Errorf("only %d answers of the pod were reordered", n)
			}
		})
	}
}

// TestReorderOfTCP: segments that a router had to fragment arrive, the first
// fragment last.
func TestReorderOfTCP(t *testing.T) {
	t.Parallel()
	c, toNode, _ := newReorderedCluster(t)
	startAgent(t, c.nodes[0], append(c.service(1, "near", "", []endpoint{otherLocal}),
		c.service(2, "far", "", []endpoint{remote})...))
	err := c.router.Run(func() error {
		link, err := netlink.LinkByName("nodes")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, 1000)
	})
	if err != nil {
		t.Fatal(err)
	}
	c.watchChecksums(t)
	for i, e := range []endpoint{otherLocal, remote} {
		s := c.client.Socket("tcp4")
		// Packets may be fragmented on their way.
		if err := s.SetOption(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT); err != nil {
			t.Fatal(err)
		}
		before := toNode.overtook.Load()
		got, err := askBy(s, "tcp4", nodePort("tcp4", i+1), strings.Repeat("x", 1400))
		if err != nil || got.name != e.server() {
			t.Errorf("to %s: %v, %v", e.server(), got, err)
		}
		if toNode.overtook.Load() == before {
			t.Errorf("to %s: nothing was reordered", e.server())
		}
	}
}

// TestReorderOfPods: the same between pods whose sockets are not served.
func TestReorderOfPods(t *testing.T) {
	t.Parallel()
	c, _, fromPod := newReorderedCluster(t)
	startAgent(t, c.nodes[0], c.podServices(), "--socket-lb", "host-namespace-only", "--pod-devices", "vethrouted,"+wireInner)
	c.watchChecksums(t)
	payload := strings.Repeat("datagram", 1000)
	for i, set := range podSets[:5] {
		for _, network := range networks[2:] {
			for _, at := range []endpoint{local, otherLocal} {
				to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
				got, err := exchange(c.podOf(at), network, to, payload)
				if err != nil || !strings.HasPrefix(got, set.endpoints[0].server()+" ") || !strings.HasSuffix(got, " "+payload) {
					t.Errorf("%s from %s to %v: %d bytes came back: %v", network, at.server(), set.endpoints, len(got), err)
				}
			}
		}
	}
	if n := fromPod.overtook.Load(); n < 10 {
		t.Errorf("only %d datagrams of the pod were reordered", n)
	}
}

// TestReorderOfOthers: fragments that belong to no Service arrive, too, after the node has queued
// them until the first one.
func TestReorderOfOthers(t *testing.T) {
	t.Parallel()
	c, toNode, _ := newReorderedCluster(t)
	startAgent(t, c.nodes[0], c.service(1, "other", "", []endpoint{remote}))
	c.watchChecksums(t)
	payload := strings.Repeat("datagram", 1000)
	for name, at := range map[string]addrs{
		"node1/host":    nodeAddrs(1),
		"node1/bridged": c.nodes[0].bridgedAddrs(),
	} {
		for _, network := range networks[2:] {
			got, err := exchange(c.client, network, netip.AddrPortFrom(at.of(network), backendPort), payload)
			if err != nil || !strings.HasPrefix(got, name+" ") || !strings.HasSuffix(got, " "+payload) {
				t.Errorf("%s to %s: %d bytes came back: %v", network, name, len(got), err)
			}
		}
	}
	if n := toNode.overtook.Load(); n < 4 {
		t.Errorf("only %d datagrams were reordered", n)
	}
}

// TestProgramReorder: a fragment waits for the first one, for a while only.
func TestProgramReorder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	payload := strings.Repeat("payload ", 100)
	id := uint16(1000)
	for name, protocol := range protocols {
		for _, family := range []byte{4, 6} {
			f := frame{from: crafted[family], to: virtual[family], protocol: protocol, flags: flagSYN, payload: payload}
			wait.Until(t, name+": the first fragment comes in time, and goes on in a copy", func() bool {
				id++
				list := f.fragments(id, 256)
				b.wantVerdict(t, name+": a fragment that has overtaken", list[1], dropped)
				verdict, _ := b.run(t, "bl_ingress", list[0])
				return verdict == dropped
			})
			id++
			late := f.fragments(id, 256)
			b.wantVerdict(t, name+": a fragment that comes early", late[1], dropped)
			time.Sleep(250 * time.Millisecond)
			if verdict, _ := b.run(t, "bl_ingress", late[0]); verdict == dropped {
				t.Errorf("%s %d: a first fragment still waits for one of 250 ms ago", name, family)
			}
		}
	}
}

// TestProgramReorderAgain: a fragment waits for the first one, also when another datagram with its id
// has passed long ago.
func TestProgramReorderAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := uint16(1000)
	for _, family := range families {
		f := frame{from: crafted[family], to: virtual[family], protocol: unix.IPPROTO_UDP, payload: strings.Repeat("payload ", 100)}
		wait.Until(t, "the first fragment comes in time, and goes on in a copy", func() bool {
			id++
			list := f.fragments(id, 256)
			for _, fragment := range list {
				b.wantVerdict(t, "a fragment of the former datagram", fragment, passes)
			}
			ageFragments(t, b.programs.program(t, "bl_ingress"))
			b.wantVerdict(t, "a fragment that has overtaken", list[1], dropped)
			verdict, _ := b.run(t, "bl_ingress", list[0])
			return verdict == dropped
		})
	}
}

// ageFragments makes what a program has noted of fragments older than BL_FRAGMENT_SECONDS.
func ageFragments(t *testing.T, p *ebpf.Program) {
	t.Helper()
	const secondAt, age = 44, 31 // in struct bl_fragment_entry
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if info, err := m.Info(); err != nil || info.Name != "bl_fragment" {
			continue
		}
		var key, value []byte
		for entries := m.Iterate(); entries.Next(&key, &value); {
			second := value[secondAt:]
			binary.NativeEndian.PutUint32(second, binary.NativeEndian.Uint32(second)-age)
			if err := m.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	t.Fatal("the program has no bl_fragment")
}

// TestProgramReorderRoom: only so many fragments of a datagram are kept at once; one that finds
// no room passes unchanged and is counted.
func TestProgramReorderRoom(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const (
		room   = 64                     // BL_REORDER_GROUP
		atOnce = 150 * time.Millisecond // no fragment is given up that soon
	)
	id := uint16(1000)
	var kept []time.Time // when each of a datagram came, from before its program ran
	all := 0             // of the datagrams before, too, which may have the same room
	wait.Until(t, "a fragment that finds no room", func() bool {
		id++
		kept = nil
		f := frame{from: crafted[4], to: virtual[4], protocol: unix.IPPROTO_UDP, payload: strings.Repeat("payload ", 32*(room+8))}
		for _, fragment := range f.fragments(id, 256)[1:] {
			begin := time.Now()
			verdict, out := b.run(t, "bl_ingress", fragment)
			if verdict == passes {
				if !bytes.Equal(out, fragment) {
					t.Fatalf("a fragment that passes was changed: % x", out)
				}
				return true
			}
			kept = append(kept, begin)
			all++
			if n := len(kept); n > room && time.Since(kept[n-room-1]) < atOnce {
				t.Fatalf("more than %d fragments of a datagram were kept at once", room)
			}
		}
		return false
	})
	if all < room {
		t.Errorf("only %d fragments were kept, want %d", all, room)
	}
	reasons, err := statusmap.New(b.maps).Reasons()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reasons {
		if r.Name == "fragment_not_kept" && r.Count != 1 {
			t.Errorf("one fragment passed, %d were counted", r.Count)
		}
	}
}

// wantVerdict fails the test unless that is the verdict on a packet that comes in.
func (b *bench) wantVerdict(t *testing.T, what string, packet []byte, want uint32) {
	t.Helper()
	if verdict, _ := b.run(t, "bl_ingress", packet); verdict != want {
		t.Errorf("%s: verdict %d, want %d", what, int32(verdict), int32(want))
	}
}
