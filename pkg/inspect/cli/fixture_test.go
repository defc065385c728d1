package cli_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/servicetest"
)

// now is the time of the tests.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var testNode = &model.LocalNode{Name: "node-a"}

// newBPFFS mounts a BPF file system for the test.
func newBPFFS(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: to make BPF maps and mount a BPF file system")
	}
	path := t.TempDir()
	if err := unix.Mount("bpf", path, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", path, err)
		}
	})
	return path
}

// newDatapath pins tables with the Services of the fixture, as an agent leaves
// them, and returns the BPF file system.
func newDatapath(t *testing.T) string {
	t.Helper()
	bpffs, maps := pinned(t, fixture())
	dir := datapath.Dir(bpffs)
	fillStatus(t, maps)
	fillCounters(t, dir)
	fillActive(t, dir)
	fillAffinity(t, dir)
	fillFlows(t, maps, dir)
	return bpffs
}

// pinned pins tables with some Services, and returns the BPF file system.
func pinned(t *testing.T, services []served) (bpffs string, maps *bpfmap.Maps) {
	t.Helper()
	bpffs = newBPFFS(t)
	dir := datapath.Dir(bpffs)
	check(t, os.MkdirAll(dir, 0o700))
	sizes := bpfmap.DefaultSizes
	sizes.Affinity, sizes.UDPPeers, sizes.Flows, sizes.Clients = 1024, 1024, 1024, 1024
	maps, err := bpfmap.Load(dir, sizes)
	check(t, err)
	t.Cleanup(func() { check(t, maps.Close()) })
	tab := tables.New(servicetest.Open(t, maps))
	_, err = tab.SetNodes(nodes(), testNode.Name)
	check(t, err)
	for _, s := range services {
		_, err := tab.Apply(tables.Compile(s.service, s.slices, testNode))
		check(t, err)
	}
	check(t, tab.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []netip.Addr{netip.MustParseAddr("10.96.200.1")}))
	check(t, tab.SetNodeAddrs(map[netip.Addr]tables.NodeAddr{
		netip.MustParseAddr("192.0.2.10"): {},
		netip.MustParseAddr("127.0.0.1"):  {HostOnly: true},
	}, nil))
	check(t, maps.Pin(dir))
	return bpffs, maps
}

// fillStatus tells what an agent does: of itself, of nodes, and of Services that it could not write.
func fillStatus(t *testing.T, maps *bpfmap.Maps) {
	t.Helper()
	nodemap.New(maps).SetAnswer(2, netip.MustParseAddr("192.0.2.11"), nodemap.Accepts)
	nodemap.New(maps).SetAnswer(3, netip.MustParseAddr("2001:db8::12"), nodemap.Unreachable)
	nodemap.New(maps).SetAnswer(4, netip.MustParseAddr("192.0.2.13"), nodemap.Refuses)
	nodemap.New(maps).SetAnswer(5, netip.MustParseAddr("192.0.2.14"), nodemap.Asked)
	statusmap.New(maps).SetAgent(statusmap.Agent{
		PID: 4242, Started: now.Add(-3 * time.Hour), Version: "v0.1.0", Node: "node-a",
		Source: "https://192.0.2.1:6443", Cgroup: "/sys/fs/cgroup",
		TunnelPort: 6091,
	})
	statusmap.New(maps).SetSynced(now.Add(-5*time.Second), 2)
	for service, why := range map[string]string{
		"shop/agent": "frontend 203.0.113.5:8126/TCP belongs to Service shop/web",
		"shop/late":  "map bl_service is full (5 entries): set --max-services higher",
	} {
		check(t, statusmap.New(maps).PutUnapplied(statusmap.Unapplied{
			Service: name(service), Error: why, Since: now.Add(-2 * time.Minute), Next: now.Add(8 * time.Second), Tries: 9,
		}))
	}
}

// nodes are those of the cluster.
func nodes() []*model.Node {
	var list []*model.Node
	for name, addr := range map[string]string{
		"node-a": "192.0.2.10", "node-b": "192.0.2.11", "node-c": "2001:db8::12", "node-d": "192.0.2.13",
		"node-e": "192.0.2.14", "node-f": "192.0.2.15",
	} {
		list = append(list, &model.Node{Name: name, Tunnel: netip.MustParseAddr(addr)})
	}
	return list
}

type served struct {
	service *model.Service
	slices  []*model.Slice
}

// fixture returns Services of every kind, in the order in which they get ids.
func fixture() []served {
	return []served{
		{
			&model.Service{
				Name: name("default/kubernetes"), Type: "ClusterIP", ClusterIPs: addrs("10.96.0.1"),
				Ports: []model.ServicePort{{Name: "https", Protocol: model.TCP, Port: 443}},
			},
			[]*model.Slice{slice("default/kubernetes", "https", model.TCP, 6443, ready("192.0.2.1", ""))},
		},
		web(),
		dns(),
		{
			&model.Service{
				Name: name("shop/empty"), Type: "ClusterIP", ClusterIPs: addrs("10.96.0.30"),
				Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
			},
			nil,
		},
		{
			&model.Service{
				Name: name("shop/agent"), Type: "ClusterIP", ClusterIPs: addrs("10.96.0.31"), InternalLocal: true,
				Ports: []model.ServicePort{{Protocol: model.TCP, Port: 8126}},
			},
			[]*model.Slice{slice("shop/agent", "", model.TCP, 8126, ready("10.0.2.9", "node-b"))},
		},
		{
			&model.Service{
				Name: name("shop/many"), Type: "ClusterIP", ClusterIPs: addrs("10.96.0.40"),
				Ports: manyPorts(6),
			},
			nil,
		},
		{
			&model.Service{
				Name: name("kube-system/busy"), Type: "ClusterIP", ClusterIPs: addrs("10.96.0.41"), Algorithm: model.LeastConn,
				Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
			},
			[]*model.Slice{slice("kube-system/busy", "", model.TCP, 8080, ready("10.0.1.7", "node-a"), ready("10.0.2.7", "node-b"))},
		},
	}
}

// web is dual-stack, on a load balancer, and has a terminating endpoint that is
// still used on this node.
func web() served {
	draining := model.Endpoint{
		Addr: netip.MustParseAddr("10.0.1.2"), NodeName: "node-a", Serving: true, Terminating: true,
	}
	return served{
		&model.Service{
			Name: name("shop/web"), Type: "LoadBalancer",
			ClusterIPs:      addrs("10.96.0.20", "fd00:96::20"),
			ExternalIPs:     addrs("198.51.100.7"),
			LoadBalancerIPs: addrs("203.0.113.5"),
			SourceRanges:    []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("192.0.2.0/24")},
			ExternalLocal:   true,
			AffinitySeconds: 10800,
			Ports: []model.ServicePort{
				{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080},
			},
		},
		[]*model.Slice{
			slice("shop/web", "http", model.TCP, 8080,
				ready("10.0.2.1", "node-b"), ready("10.0.3.1", "node-c"), draining),
			slice("shop/web", "http", model.TCP, 8080, ready("fd00:1::1", "node-a")),
		},
	}
}

// dns has one port in two protocols, and an affinity that is soon over.
func dns() served {
	return served{
		&model.Service{
			Name: name("kube-system/dns"), Type: "ClusterIP", ClusterIPs: addrs("10.96.0.10"), AffinitySeconds: 10,
			Forwarding: model.Hybrid,
			Ports: []model.ServicePort{
				{Name: "dns", Protocol: model.UDP, Port: 53},
				{Name: "dns-tcp", Protocol: model.TCP, Port: 53},
			},
		},
		[]*model.Slice{
			slice("kube-system/dns", "dns", model.UDP, 53, ready("10.0.1.5", "node-a"), ready("10.0.2.5", "node-b")),
			slice("kube-system/dns", "dns-tcp", model.TCP, 53, ready("10.0.1.5", "node-a"), ready("10.0.2.5", "node-b")),
		},
	}
}

func manyPorts(n int) []model.ServicePort {
	list := make([]model.ServicePort, n)
	for i := range list {
		list[i] = model.ServicePort{Name: string(rune('a' + i)), Protocol: model.TCP, Port: uint16(7000 + i)}
	}
	return list
}

func name(s string) model.Name {
	dir, base := filepath.Split(s)
	return model.Name{Namespace: filepath.Clean(dir), Name: base}
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func ready(addr, node string) model.Endpoint {
	return model.Endpoint{Addr: netip.MustParseAddr(addr), NodeName: node, Ready: true, Serving: true}
}

func slice(service, port string, protocol model.Protocol, number uint16, endpoints ...model.Endpoint) *model.Slice {
	n := name(service)
	return &model.Slice{
		Name: n, Service: n.Name, Family: model.FamilyOf(endpoints[0].Addr),
		Ports:     []model.SlicePort{{Name: port, Protocol: protocol, Port: number}},
		Endpoints: endpoints,
	}
}

// The ids that the fixture's Service ports get.
const (
	webID   = 1
	dnsID   = 3
	emptyID = 5
)

// fillCounters counts what the programs would have.
func fillCounters(t *testing.T, dir string) {
	t.Helper()
	stats := openMap(t, dir, "bl_service_stat")
	var chunk *ebpf.Map
	check(t, stats.Lookup(uint32(0), &chunk))
	defer chunk.Close()
	perCPU := make([]bpf.SockBlServiceStatEntry, cpus(t))
	perCPU[0] = bpf.SockBlServiceStatEntry{Connections: 1200, Refused: 3, Dropped: 1}
	check(t, chunk.Put(uint32(webID), perCPU))

	refused := make([]uint64, cpus(t))
	refused[0] = 17
	check(t, openMap(t, dir, "bl_counter").Put(uint32(0), refused))
}

// fillActive counts active connections, and some of a backend that has gone.
func fillActive(t *testing.T, dir string) {
	t.Helper()
	var chunk *ebpf.Map
	check(t, openMap(t, dir, "bl_active").Lookup(uint32(0), &chunk))
	defer chunk.Close()
	check(t, chunk.Put(uint32(10), [4]uint64{1<<32 | 7, 1<<32 | 3}))
	check(t, chunk.Put(uint32(11), [4]uint64{1<<32 | 2, 9<<32 | 8}))
}

// fillAffinity remembers clients as the programs do: of those of sockets two valid, one expired, one of
// a backend that has gone; of those of packets some that have established a flow, some that have not.
func fillAffinity(t *testing.T, dir string) {
	t.Helper()
	const idle = 20 * time.Second
	type entry struct {
		ID, Generation uint32
		LastUsed       uint64
	}
	var ts unix.Timespec
	check(t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts))
	last := uint64(ts.Nano()) - uint64(idle)
	affinity := openMap(t, dir, "bl_affinity")
	put := func(netns, service uint32, e entry) {
		check(t, affinity.Put([2]uint32{netns, service}, e))
	}
	put(4026, webID, entry{2, 1, last})
	put(4030, webID, entry{3, 1, last})
	put(4031, webID, entry{2, 7, last})
	put(4027, dnsID, entry{5, 1, last})

	known, fresh := openMap(t, dir, "bl_client"), openMap(t, dir, "bl_new_client")
	for _, c := range []struct {
		client  string
		service uint32
		in      *ebpf.Map
		entry
	}{
		{"203.0.113.10", webID, known, entry{2, 1, last}}, // asked first
		{"203.0.113.10", webID, fresh, entry{3, 1, last}},
		{"203.0.113.7", webID, known, entry{2, 7, last}}, // of a backend that has gone
		{"203.0.113.7", webID, fresh, entry{3, 1, last}},
		{"203.0.113.8", webID, known, entry{2, 7, last}},
		{"203.0.113.8", webID, fresh, entry{3, 7, last}},
		{"203.0.113.9", webID, fresh, entry{3, 1, last}},
		{"203.0.113.11", webID, fresh, entry{3, 7, last}}, // decides nothing
		{"2001:db8::9", webID + 1, known, entry{4, 1, last}},
		{"203.0.113.9", dnsID, known, entry{5, 1, last}}, // expired
		{"203.0.113.9", dnsID, fresh, entry{6, 1, last}},
	} {
		key := struct {
			Client  [16]byte
			Service uint32
		}{netip.MustParseAddr(c.client).As16(), c.service}
		check(t, c.in.Put(key, c.entry))
	}
}

func openMap(t *testing.T, dir, name string) *ebpf.Map {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, bpfmap.PinName(name)), nil)
	check(t, err)
	t.Cleanup(func() { check(t, m.Close()) })
	return m
}

func cpus(t *testing.T) int {
	t.Helper()
	n, err := ebpf.PossibleCPU()
	check(t, err)
	return n
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
