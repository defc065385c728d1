package packets_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// The size of the flood, and that of the table that it could fill many times over.
const (
	floodPackets = 40_000 // of each protocol and family to each Service
	floodTable   = 16_384 // entries, two for a flow
)

// floodSources are where the packets of a flood say they come from. What is sent there
// reaches the other machine beside the client, which has none of the addresses.
var floodSources = [2]netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8:f::/48")}

// flooder sends first packets of connections that are never established: a SYN flood.
type flooder struct {
	fd     int
	router net.HardwareAddr
	sent   atomic.Int64
}

// newFlooder lets the other machine beside the client send frames to the router.
func (c *cluster) newFlooder(t *testing.T) *flooder {
	t.Helper()
	for family, r := range floodSources {
		c.router.AddRoute(r, otherClientAddrs[family], "clients")
	}
	return newFlooder(t, c.other, uplink, c.router, "clients")
}

// newFlooder lets a machine send frames by one of its devices to the router's device.
func newFlooder(t *testing.T, from *lab.Namespace, by string, router *lab.Namespace, at string) *flooder {
	t.Helper()
	f := &flooder{}
	err := router.Run(func() error {
		link, err := netlink.LinkByName(at)
		if err == nil {
			f.router = link.Attrs().HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = from.Run(func() error {
		link, err := netlink.LinkByName(by)
		if err != nil {
			return err
		}
		if f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(f.fd, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(f.fd) })
	return f
}

// source returns a source of a network that no other i has.
func floodSource(network string, i int) netip.AddrPort {
	family := 0
	if network[3] == '6' {
		family = 1
	}
	addr := floodSources[family].Addr().AsSlice()
	low := addr[len(addr)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)|uint32(i*2654435761)>>15)
	from, _ := netip.AddrFromSlice(addr)
	return netip.AddrPortFrom(from, uint16(1024+i%60000))
}

// flood sends packets to an address, at no more than some 50,000 a second.
func (f *flooder) flood(network string, to netip.AddrPort, packets int) error {
	protocol := byte(unix.IPPROTO_TCP)
	if strings.HasPrefix(network, "udp") {
		protocol = unix.IPPROTO_UDP
	}
	for i := range packets {
		packet := frame{from: floodSource(network, i), to: to, protocol: protocol, flags: flagSYN, payload: "x"}
		if protocol == unix.IPPROTO_TCP {
			packet.payload = ""
		}
		_, err := unix.Write(f.fd, toMAC(packet.bytes(), f.router))
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		f.sent.Add(1)
		if i%100 == 99 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}

// established is a connection from before the flood.
type established struct {
	network string
	socket  *lab.Socket
	hello   greeting
	service int
}

// establish opens connections to two Services by each protocol and family.
func (c *cluster) establish(t *testing.T, each int) []established {
	t.Helper()
	var list []established
	for _, network := range networks {
		for service := 1; service <= 2; service++ {
			for range each {
				s, hello := connect(t, c.client, network, nodePort(network, service))
				e := established{network, s, hello, service}
				if err := e.goesOn(); err != nil {
					t.Fatal(err)
				}
				list = append(list, e)
			}
		}
	}
	return list
}

// goesOn returns an error unless the backend answers by the same flow.
func (e *established) goesOn() error {
	if strings.HasPrefix(e.network, "tcp") {
		return echo(e.socket, "still here")
	}
	hello, err := talkUDP(e.socket, "still here")
	if err == nil && hello != e.hello {
		err = fmt.Errorf("the flow of %v goes on as that of %v", e.hello, hello)
	}
	return err
}

// flowKeys returns the keys of the node's flow table.
func flowKeys(t *testing.T, n *node) map[[40]byte]bool {
	t.Helper()
	flows := pinned(t, n.BPFFS, "bl_flow")
	var key [40]byte
	entry := make([]byte, flowSize)
	keys := make(map[[40]byte]bool)
	entries := flows.Iterate()
	for entries.Next(&key, &entry) {
		keys[key] = true
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return keys
}

// mapMemory returns the kernel memory of a node's maps.
func mapMemory(t *testing.T, n *node) uint64 {
	return withMaps(t, n, func(maps *bpfmap.Maps) uint64 {
		memory, err := statusmap.New(maps).Memory()
		if err != nil {
			t.Fatal(err)
		}
		return memory
	})
}

// TestFlood: during a flood of first packets from forged sources, established connections go on, idle
// ones too; new ones are served; the tables use no more memory; afterwards all is as before.
func TestFlood(t *testing.T) {
	tier.Slow(t, "sends hundreds of thousands of packets")
	t.Parallel()
	short := filepath.Join(t.TempDir(), "short.yaml")
	config := "apiVersion: config.beeline.io/v1alpha1\nkind: BeelineConfiguration\nflowTimeouts: {tcpSynSent: 3s, tcpSynReceived: 3s}\n"
	if err := os.WriteFile(short, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, a := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "far", "", []endpoint{remote}), c.service(2, "near", "", []endpoint{local})...)
	}, "--max-flows", fmt.Sprint(floodTable), "--config", short, "--conntrack-udp-timeout", "3s",
		"--conntrack-udp-timeout-stream", "1h") // no flow may end while the test runs
	f := c.newFlooder(t)
	before := c.establish(t, 20)
	keys, memory := flowKeys(t, a.node), mapMemory(t, a.node)
	if len(keys) < 2*len(before) {
		t.Fatalf("%d entries of %d connections", len(keys), len(before))
	}

	asked := 0
	for _, network := range networks {
		for service := 1; service <= 2; service++ {
			asked += c.askInFlood(t, f, network, service, before)
		}
	}
	t.Logf("%d packets of the flood, %d connections meanwhile", f.sent.Load(), asked)
	if f.sent.Load() < 300_000 {
		t.Errorf("only %d packets in the flood", f.sent.Load())
	}
	if n := eventCount(t, a.node, "flow_overflow"); n < 100_000 {
		t.Errorf("the tables had room for all packets of the flood but %d", n)
	}

	after, lost := flowKeys(t, a.node), 0
	for key := range keys {
		if !after[key] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d entries of established connections were lost in the flood", lost, len(keys))
	}
	if used := mapMemory(t, a.node); used != memory {
		t.Errorf("the maps take %d bytes, before the flood %d", used, memory)
	}
	for i := range before {
		if err := before[i].goesOn(); err != nil {
			t.Errorf("%s to %s from before the flood: %v", before[i].network, before[i].hello.name, err)
		}
	}
	a.checkRecovers(t, c)
}

// TestFloodAffinity: clients with an established connection keep their affinity during a flood that
// would fill the table of clients many times over; also those whose affinity had expired before.
func TestFloodAffinity(t *testing.T) {
	t.Parallel()
	c, a := serveCluster(t, func(c *cluster) []string {
		return c.service(1, "sticky", "sessionAffinity: ClientIP,", everywhere[:1])
	}, "--max-clients", "512")
	f := c.newFlooder(t)
	reached := func(n *lab.Namespace, network string) string {
		got, err := ask(n, network, nodePort(network, 1), "x")
		if err != nil {
			t.Fatal(err)
		}
		return got.name
	}
	clients := []*lab.Namespace{c.client, c.other, c.router, c.nodes[1].Namespace}
	for _, n := range clients {
		reached(n, "tcp4")
		reached(n, "tcp6")
	}
	expireClients(t, a.node)
	had := make(map[*lab.Namespace][2]string)
	for _, n := range clients {
		had[n] = [2]string{reached(n, "tcp4"), reached(n, "tcp6")}
	}
	a.apply(c.service(1, "sticky", "sessionAffinity: ClientIP,", everywhere)...)
	for family, network := range networks[:2] {
		if err := f.flood(network, nodePort(network, 1), 10_000); err != nil {
			t.Fatal(err)
		}
		for i, n := range clients {
			if got := reached(n, network); got != had[n][family] {
				t.Errorf("client %d by %s reached %s after the flood, before it %s", i, network, got, had[n][family])
			}
		}
	}
}

// expireClients lets four hours pass for the affinity of all clients: it ends after three by default, and other
// clients have taken the places of those that have yet to establish a connection.
func expireClients(t *testing.T, n *node) {
	t.Helper()
	for _, name := range []string{"bl_client", "bl_new_client"} {
		var key [20]byte
		var value struct{ Backend, LastUsed uint64 }
		clients := pinned(t, n.BPFFS, name)
		all := make(map[[20]byte]struct{ Backend, LastUsed uint64 })
		for next := clients.Iterate(); next.Next(&key, &value); {
			value.LastUsed -= uint64(4 * time.Hour)
			all[key] = value
		}
		for key, value := range all {
			err := clients.Put(key, value)
			if name == "bl_new_client" {
				err = clients.Delete(key)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// askInFlood floods a Service, and meanwhile makes new connections to it and goes on with
// half of those that there were. It returns how many were made.
func (c *cluster) askInFlood(t *testing.T, f *flooder, network string, service int, before []established) int {
	t.Helper()
	to := nodePort(network, service)
	ended := make(chan error)
	go func() { ended <- f.flood(network, to, floodPackets) }()
	for asked := 0; ; asked++ {
		got, err := askPatiently(c.client, network, to)
		if want := []endpoint{remote, local}[service-1].server(); err != nil || got.name != want {
			t.Errorf("%s to Service %d in the flood: %v, %v, want %s", network, service, got, err, want)
		}
		busy := before[asked%(len(before)/2)*2]
		if err := busy.goesOn(); err != nil && strings.HasPrefix(busy.network, "tcp") {
			t.Errorf("%s to %s in the flood: %v", busy.network, busy.hello.name, err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			return asked
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// askPatiently asks a server that may have more to do than it can: of UDP, some requests
// get lost.
func askPatiently(n *lab.Namespace, network string, to netip.AddrPort) (got answer, err error) {
	for range 5 {
		if got, err = ask(n, network, to, "x"); err == nil || strings.HasPrefix(network, "tcp") {
			break
		}
	}
	return got, err
}

// checkRecovers waits until what the flood has left is forgotten, and wants new
// connections to find room as before.
func (a *agent) checkRecovers(t *testing.T, c *cluster) {
	t.Helper()
	for deadline := time.Now().Add(wait.Limit); ; time.Sleep(time.Second) {
		known, _ := a.halfOpen(t)
		if known.Count <= 100 && known.Overflow == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the flood the programs still know of %+v", known)
		}
	}
	before := eventCount(t, a.node, "flow_overflow")
	for _, network := range networks {
		for service := 1; service <= 2; service++ {
			connect(t, c.client, network, nodePort(network, service))
		}
	}
	if n := eventCount(t, a.node, "flow_overflow") - before; n > 0 {
		t.Errorf("%d connections after the flood found no room", n)
	}
}

// TestFloodDSR: when half-open connections have used up their share, a node with Maglev and direct
// server return stores no more flows, and selects the backend of each packet by the ring.
func TestFloodDSR(t *testing.T) {
	tier.Slow(t, "sends tens of thousands of packets")
	t.Parallel()
	for _, xdp := range []string{"off", "native"} {
		t.Run("XDP "+xdp, func(t *testing.T) {
			t.Parallel()
			c := newClusterFor(t, xdp)
			a := c.serveDSR(t, c.service(1, "far", "", []endpoint{remote, otherRemote}), "--algorithm", "maglev", "--max-flows", fmt.Sprint(floodTable), "--xdp", xdp)
			f := c.newFlooder(t)
			for _, network := range networks {
				if err := f.flood(network, nodePort(network, 1), 8000); err != nil {
					t.Fatal(err)
				}
			}
			if n := eventCount(t, a.node, "flow_overflow"); n < 25_000 {
				t.Errorf("the table had room for all packets of the flood but %d", n)
			}
			c.goByRing(t, a, f)
			if known, _ := a.halfOpen(t); known.Overflow != 0 {
				t.Errorf("the overflow table is used: %+v", known)
			}
		})
	}
}

// goByRing makes connections while half-open ones have used up their share, and wants none
// of them to be stored. Where one that expired or was evicted has made room, which each
// connection in turn may use, it floods and tries again.
func (c *cluster) goByRing(t *testing.T, a *agent, f *flooder) {
	t.Helper()
	for {
		stored := c.connectByRing(t, a)
		if stored <= 0 {
			return
		}
		known, most := a.halfOpen(t)
		if known.Count >= int64(most) {
			t.Fatalf("%d connections were stored beside %d half-open ones, of at most %d", stored, known.Count, most)
		}
		if err := f.flood("tcp4", nodePort("tcp4", 1), 8000); err != nil {
			t.Fatal(err)
		}
	}
}

// connectByRing makes connections to a Service with two backends, wants each to stay with its
// backend and both to be reached, and returns how many flows more there are afterwards.
func (c *cluster) connectByRing(t *testing.T, a *agent) (stored int) {
	t.Helper()
	before := len(c.flowsOf(t, a.node))
	seen := map[string]int{}
	for range 10 {
		for _, network := range networks {
			s, hello := connect(t, c.client, network, nodePort(network, 1))
			e := established{network, s, hello, 1}
			for range 3 {
				if err := e.goesOn(); err != nil {
					t.Errorf("%s to %s: %v", network, hello.name, err)
				}
			}
			seen[hello.name]++
		}
	}
	if len(seen) != 2 {
		t.Errorf("connections reached %v only", seen)
	}
	return len(c.flowsOf(t, a.node)) - before
}

// halfOpen returns what a node's programs know of half-open flows, and how many there may be
// in the flow table.
func (a *agent) halfOpen(t *testing.T) (known flowmap.HalfOpen, most uint32) {
	t.Helper()
	known = withMaps(t, a.node, func(maps *bpfmap.Maps) flowmap.HalfOpen {
		most = maps.MaxHalfOpen()
		return flowmap.New(maps).HalfOpen()
	})
	return known, most
}
