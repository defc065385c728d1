package verify_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/servicetest"
)

// kernel is the tables of a node without an agent, to be damaged.
type kernel struct {
	*bpfmap.Maps
	*servicemap.Store
	t    *testing.T
	have tables.Snapshot
}

// id returns the id of a Service port of IPv4.
func (k *kernel) id(service, port string) uint32 {
	k.t.Helper()
	for id, name := range k.have.Names {
		if name.Port.Service.Name == service && name.Port.Port == port && name.Family == model.IPv4 {
			return id
		}
	}
	k.t.Fatalf("no port %q of Service %s", port, service)
	return 0
}

// backend returns the id and the entry of a backend of a Service port.
func (k *kernel) backend(service uint32, i int) (uint32, tables.Backend) {
	k.t.Helper()
	for id, b := range k.have.Backends {
		if b.Service == service && b.AddrPort.Addr() == lab.Backend4(i) {
			return id, b
		}
	}
	k.t.Fatalf("no backend %d of Service port %d", i, service)
	return 0, tables.Backend{}
}

func key(at string, protocol model.Protocol) tables.FrontendKey {
	a := addrPort(at)
	return tables.FrontendKey{Addr: a.Addr(), Port: a.Port(), Protocol: protocol}
}

// rawKey is a key as the programs look it up.
func rawKey(k tables.FrontendKey) *bpf.SockBlFrontendKey {
	return &bpf.SockBlFrontendKey{Addr: bpf.AddrOf(k.Addr), Port: bpf.Hton16(k.Port), Proto: uint8(k.Protocol)}
}

// rawEntry is a frontend of the first Service port.
func rawEntry() bpf.SockBlFrontendEntry {
	return bpf.SockBlFrontendEntry{Kind: uint8(tables.FrontendClusterIP)}
}

func changeKind(e *bpf.SockBlFrontendEntry)   { e.Kind = uint8(tables.FrontendExternalIP) }
func changeDigest(e *bpf.SockBlFrontendEntry) { e.Check ^= 1 }

// damage is one kind of damage to the tables. do returns what undoes it.
type damage struct {
	name, kind string
	words      []string
	do         func(k *kernel) (undo func() error)
}

func frontendDamages() []damage {
	web := key("10.96.0.1:80", model.TCP)
	change := func(k *kernel, change func(*tables.Frontend)) func() error {
		f := k.have.Frontends[web]
		changed := f
		change(&changed)
		check(k.t, k.PutFrontend(web, changed))
		return func() error { return k.PutFrontend(web, f) }
	}
	return []damage{
		{"frontend removed", "frontend-missing", []string{"10.96.0.1:80/TCP", "default/web:web"}, func(k *kernel) func() error {
			check(k.t, k.DeleteFrontend(web))
			return func() error { return k.PutFrontend(web, k.have.Frontends[web]) }
		}},
		{"frontend of another Service", "frontend-changed", []string{"10.96.0.1:80/TCP leads to default/ring", "want default/web:web"}, func(k *kernel) func() error {
			return change(k, func(f *tables.Frontend) { f.Service = k.id("ring", "") })
		}},
		{"frontend of no Service", "frontend-changed", []string{"leads to service id 77, which is no Service's"}, func(k *kernel) func() error {
			return change(k, func(f *tables.Frontend) { f.Service = 77 })
		}},
		{"flags of a frontend", "frontend-changed", []string{"10.96.0.1:80/TCP", "with flags"}, func(k *kernel) func() error {
			return change(k, func(f *tables.Frontend) { f.Flags |= tables.ExternalLocal })
		}},
		{"frontend added", "frontend-surplus", []string{"10.96.0.99:80/TCP", "default/web:web"}, func(k *kernel) func() error {
			extra := key("10.96.0.99:80", model.TCP)
			check(k.t, k.PutFrontend(extra, k.have.Frontends[web]))
			return func() error { return k.DeleteFrontend(extra) }
		}},
		{"digest of a frontend", "frontend-digest", []string{"10.96.0.1:80/TCP"}, func(k *kernel) func() error {
			k.changeRaw("10.96.0.1", changeDigest)
			return k.Rederive
		}},
		{"filter cleared", "filter-missing", []string{"the filter", "10.96.0.1:80/TCP"}, func(k *kernel) func() error {
			clear(k.Entries.Filter.Word[:])
			return k.Rederive
		}},
		{"filter bits of nobody", "filter-surplus", []string{"bits that stand for no frontend"}, func(k *kernel) func() error {
			for i := range k.Entries.Filter.Word {
				k.Entries.Filter.Word[i] |= 1
			}
			return k.Rederive
		}},
	}
}

// changeRaw changes the entries of an address's frontends behind the agent's back.
func (k *kernel) changeRaw(at string, change func(*bpf.SockBlFrontendEntry)) {
	k.t.Helper()
	changed := make(map[bpf.SockBlFrontendKey]bpf.SockBlFrontendEntry)
	check(k.t, bpfmap.Each(k.BlFrontend, func(key *bpf.SockBlFrontendKey, e *bpf.SockBlFrontendEntry) {
		if key.Addr.Netip() == addr(at) {
			change(e)
			changed[*key] = *e
		}
	}))
	for key, e := range changed {
		check(k.t, bpfmap.Put(k.BlFrontend, &key, &e))
	}
}

func serviceDamages() []damage {
	change := func(k *kernel, change func(*tables.Service)) func() error {
		id := k.id("web", "web")
		s := k.have.Services[id]
		changed := s
		change(&changed)
		check(k.t, k.PutService(id, changed))
		return func() error { return k.PutService(id, s) }
	}
	slot := func(k *kernel, backend uint32) func() error {
		set := k.have.Services[k.id("web", "web")].Cluster
		was := k.have.Slots(set)
		check(k.t, k.PutSlots(set.First, []uint32{backend}))
		return func() error { return k.PutSlots(set.First, was) }
	}
	return []damage{
		{"Service port without an entry", "service-missing", []string{"default/web:web/TCP (IPv4) has no entry"}, func(k *kernel) func() error {
			id := k.id("web", "web")
			check(k.t, k.ClearServiceName(id))
			return func() error { return k.PutServiceName(id, k.have.Names[id]) }
		}},
		{"entry of no Service", "service-surplus", []string{"default/gone:web/TCP (IPv4)", "not to be served"}, func(k *kernel) func() error {
			name := k.have.Names[k.id("web", "web")]
			name.Port.Service.Name = "gone"
			check(k.t, k.PutServiceName(900, name))
			return func() error { return k.ClearServiceName(900) }
		}},
		{"description of a Service port", "service-name", []string{"web", "Number:81"}, func(k *kernel) func() error {
			id := k.id("web", "web")
			name := k.have.Names[id]
			name.Number = 81
			check(k.t, k.PutServiceName(id, name))
			return func() error { return k.PutServiceName(id, k.have.Names[id]) }
		}},
		{"session affinity", "service-settings", []string{"default/web:web", "session affinity 7 s"}, func(k *kernel) func() error {
			return change(k, func(s *tables.Service) { s.AffinitySeconds = 7 })
		}},
		{"algorithm", "service-settings", []string{"default/web:web", "maglev"}, func(k *kernel) func() error {
			return change(k, func(s *tables.Service) { s.Algorithm = model.Maglev })
		}},
		{"tunnel", "service-settings", []string{"default/web:web", "tunnel true"}, func(k *kernel) func() error {
			return change(k, func(s *tables.Service) { s.Tunnels = true })
		}},
		{"trial", "service-trial", []string{"default/web:web/TCP (IPv4) tries endpoint 10.77.0.1:8080, want no endpoint"}, func(k *kernel) func() error {
			id, _ := k.backend(k.id("web", "web"), 1)
			return change(k, func(s *tables.Service) { s.Trial = id + 1 })
		}},
		{"set that refuses", "set-kind", []string{"the cluster set of default/web:web/TCP (IPv4) refuses"}, func(k *kernel) func() error {
			return change(k, func(s *tables.Service) { s.Cluster = tables.Set{Kind: policy.Reject} })
		}},
		{"set with fewer slots", "set-slots", []string{"the cluster set of default/web:web", "lacks 10.77.0.3:8080"}, func(k *kernel) func() error {
			return change(k, func(s *tables.Service) { s.Cluster.Count-- })
		}},
		{"slot of another endpoint", "set-slots", []string{"lacks 10.77.0.1:8080"}, func(k *kernel) func() error {
			other, _ := k.backend(k.id("web", "web"), 2)
			return slot(k, other)
		}},
		{"slot of no endpoint", "set-slots", []string{"lacks 10.77.0.1:8080", "1 slots that lead to no endpoint"}, func(k *kernel) func() error {
			return slot(k, 4000)
		}},
		{"slot of another Service's endpoint", "set-slots", []string{"lacks 10.77.0.1:8080", "has 10.77.0.4:8080"}, func(k *kernel) func() error {
			other, _ := k.backend(k.id("ring", ""), 4)
			return slot(k, other)
		}},
	}
}

func endpointDamages() []damage {
	change := func(k *kernel, change func(*tables.Backend)) func() error {
		id, b := k.backend(k.id("web", "web"), 1)
		changed := b
		change(&changed)
		check(k.t, k.PutBackend(id, changed))
		return func() error { return k.PutBackend(id, b) }
	}
	return []damage{
		{"endpoint gone", "backend-missing", []string{"10.77.0.1:8080 of default/web:web", "is missing"}, func(k *kernel) func() error {
			return change(k, func(b *tables.Backend) { b.State = 0 })
		}},
		{"address of an endpoint", "backend-surplus", []string{"10.77.0.200:8080 of default/web:web"}, func(k *kernel) func() error {
			return change(k, func(b *tables.Backend) { b.AddrPort = addrPort("10.77.0.200:8080") })
		}},
		{"state of an endpoint", "backend-changed", []string{"10.77.0.1:8080", "terminating"}, func(k *kernel) func() error {
			return change(k, func(b *tables.Backend) { b.State |= tables.Terminating })
		}},
		{"weight of an endpoint", "backend-changed", []string{"10.77.0.1:8080", "weight 9", "want weight 1"}, func(k *kernel) func() error {
			return change(k, func(b *tables.Backend) { b.Weight = 9 })
		}},
		{"half an update", "backend-surplus", []string{"10.77.0.7:8080 of default/web:web"}, func(k *kernel) func() error {
			// As an agent leaves it that is killed before the set leads to the endpoint.
			_, b := k.backend(k.id("web", "web"), 1)
			b.AddrPort = addrPort("10.77.0.7:8080")
			check(k.t, k.PutBackend(3000, b))
			b.State = 0
			return func() error { return k.PutBackend(3000, b) }
		}},
		{"endpoint of this node removed", "endpoint-missing", []string{"10.77.0.6:8080", "accepts no tunnel traffic"}, func(k *kernel) func() error {
			k.removeEndpoints()
			return k.Rederive
		}},
		{"endpoint of this node added", "endpoint-surplus", []string{"10.77.0.9:8080", "which it is not"}, func(k *kernel) func() error {
			e := bpf.SockBlEndpointKey{
				PrefixLen: uint32(bpf.SockBlEndpointBitsBL_ENDPOINT_BITS),
				Addr:      bpf.AddrOf(addr("10.77.0.9")), Port: bpf.Hton16(8080), Service: 1,
			}
			check(k.t, bpfmap.Put(k.BlEndpoint, &e, uint32(1)))
			return k.Rederive
		}},
	}
}

// removeEndpoints removes the endpoints of this node.
func (k *kernel) removeEndpoints() {
	var keys []bpf.SockBlEndpointKey
	check(k.t, bpfmap.Each(k.BlEndpoint, func(key *bpf.SockBlEndpointKey, _ *uint32) { keys = append(keys, *key) }))
	for _, key := range keys {
		check(k.t, bpfmap.Remove(k.BlEndpoint, &key))
	}
}

func addressDamages() []damage {
	return []damage{
		{"source range removed", "range-missing", []string{"192.0.2.0/24", "default/bounded"}, func(k *kernel) func() error {
			r := tables.SourceRange{Service: k.id("bounded", ""), Prefix: prefix("192.0.2.0/24")}
			check(k.t, k.DeleteSourceRange(r))
			return func() error { return k.PutSourceRange(r) }
		}},
		{"source range added", "range-surplus", []string{"198.51.100.0/24", "default/bounded"}, func(k *kernel) func() error {
			r := tables.SourceRange{Service: k.id("bounded", ""), Prefix: prefix("198.51.100.0/24")}
			check(k.t, k.PutSourceRange(r))
			return func() error { return k.DeleteSourceRange(r) }
		}},
		{"service range removed", "cidr-missing", []string{"10.96.0.0/16"}, func(k *kernel) func() error {
			check(k.t, k.DeleteServiceCIDR(prefix("10.96.0.0/16")))
			return func() error { return k.PutServiceCIDR(prefix("10.96.0.0/16")) }
		}},
		{"service range added", "cidr-surplus", []string{"10.200.0.0/16"}, func(k *kernel) func() error {
			check(k.t, k.PutServiceCIDR(prefix("10.200.0.0/16")))
			return func() error { return k.DeleteServiceCIDR(prefix("10.200.0.0/16")) }
		}},
		{"aggregate", "aggregate", []string{"prefix around all Service ranges"}, func(k *kernel) func() error {
			k.Entries.Aggregate.Mask4 = 0
			return k.Rederive
		}},
		{"node address removed", "node-address-missing", []string{lab.Node4.String()}, func(k *kernel) func() error {
			check(k.t, k.DeleteNodeAddr(lab.Node4))
			return func() error { return k.PutNodeAddr(lab.Node4, tables.NodeAddr{}) }
		}},
		{"node address added", "node-address-surplus", []string{"192.0.2.77"}, func(k *kernel) func() error {
			check(k.t, k.PutNodeAddr(addr("192.0.2.77"), tables.NodeAddr{}))
			return func() error { return k.DeleteNodeAddr(addr("192.0.2.77")) }
		}},
		{"node address of the host alone", "node-address-changed", []string{lab.Node4.String()}, func(k *kernel) func() error {
			check(k.t, k.PutNodeAddr(lab.Node4, tables.NodeAddr{HostOnly: true}))
			return func() error { return k.PutNodeAddr(lab.Node4, tables.NodeAddr{}) }
		}},
		{"range of pods", "pod-range", []string{"203.0.113.0/24"}, func(k *kernel) func() error {
			ranges := devicemap.New(k.Maps)
			_, err := ranges.SetLocalCIDRs([]netip.Prefix{prefix("203.0.113.0/24")})
			check(k.t, err)
			return func() error {
				_, err := ranges.SetLocalCIDRs(nil)
				return err
			}
		}},
		{"this node", "node-self", []string{"another node"}, func(k *kernel) func() error {
			k.Entries.Node[0].Store(0, 77)
			return k.Rederive
		}},
		{"hairpin", "hairpin", []string{"source addresses"}, func(k *kernel) func() error {
			check(k.t, bpfmap.Put(k.BlDevice, uint32(bpf.SockBlDeviceLimitBL_DEVICE_HAIRPIN), &bpf.SockBlDeviceEntry{}))
			return k.Rederive
		}},
	}
}

// damage does each damage and undoes it, while no agent runs.
func (n *node) damage(t *testing.T, damages ...[]damage) {
	t.Helper()
	m := n.maps()
	have, err := servicemap.New(m).Snapshot()
	check(t, err)
	services := servicetest.Open(t, m)
	for _, d := range slices.Concat(damages...) {
		t.Run(d.name, func(t *testing.T) {
			undo := d.do(&kernel{m, services, t, have})
			n.want(t, d.kind, d.words...)
			check(t, undo())
			n.wantNothing(t, "once the damage is undone")
		})
	}
}

// TestTables: each kind of damage to the tables is found while no agent runs, and nothing once it
// is undone.
func TestTables(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.end()
	n.wantNothing(t, "after the agent has ended")
	n.damage(t, frontendDamages(), serviceDamages(), endpointDamages(), addressDamages())
	t.Run("change while no agent runs", func(t *testing.T) {
		n.Write("second.yaml", lab.Service("more", `{clusterIP: 10.96.0.5, ports: [{port: 80}]}`))
		n.want(t, "frontend-missing", "10.96.0.5:80/TCP", "default/more")
		n.Write("second.yaml", "kind: [")
		n.want(t, "manifest", "second.yaml")
		n.Remove("second.yaml")
		n.wantNothing(t, "once the manifest is gone")
	})
}
