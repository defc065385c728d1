package servicemap

import (
	"iter"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Snapshot reads the tables. While an agent writes, the parts of the snapshot may
// be of slightly different times.
func (t Table) Snapshot() (tables.Snapshot, error) {
	s := tables.Snapshot{
		Names:     t.ServiceNames(),
		Services:  make(map[uint32]tables.Service),
		Backends:  make(map[uint32]tables.Backend),
		Slots:     t.slots,
		Frontends: make(map[tables.FrontendKey]tables.Frontend),
		NodeAddrs: make(map[netip.Addr]tables.NodeAddr),
		Nodes:     make(map[uint16]tables.Node),
		NodeIDs:   make(map[netip.Addr]uint16),
	}
	for id := range t.maps.Service.Len() {
		if _, ok := s.Names[id]; !ok {
			continue
		}
		s.Services[id] = storedService(t.maps.Service.At(id))
	}
	for id, b := range t.Backends() {
		s.Backends[id] = b
	}
	return s, t.snapshotHashes(&s)
}

// Backends yields the backends by their ids in use.
func (t Table) Backends() iter.Seq2[uint32, tables.Backend] {
	return func(yield func(uint32, tables.Backend) bool) {
		for id := range t.maps.Backend.Len() {
			if e := t.maps.Backend.At(id); e.State != 0 && !yield(id, storedBackend(e)) {
				return
			}
		}
	}
}

// InUse returns how many Service ports and backends there are.
func (t Table) InUse() (ports, backends int) {
	for id := range t.maps.ServiceName.Len() {
		if t.maps.ServiceName.At(id).Family != 0 {
			ports++
		}
	}
	for id := range t.maps.Backend.Len() {
		if t.maps.Backend.At(id).State != 0 {
			backends++
		}
	}
	return ports, backends
}

// ServiceNames returns the names of the Service ids in use.
func (t Table) ServiceNames() map[uint32]tables.ServiceName {
	names := make(map[uint32]tables.ServiceName)
	for id := range t.maps.ServiceName.Len() {
		if e := t.maps.ServiceName.At(id); e.Family != 0 {
			names[id] = serviceNameOf(e)
		}
	}
	return names
}

// ServiceName returns the name of a Service id; false when it is not in use.
func (t Table) ServiceName(id uint32) (tables.ServiceName, bool) {
	e := t.maps.ServiceName.At(id)
	if e == nil || e.Family == 0 {
		return tables.ServiceName{}, false
	}
	return serviceNameOf(e), true
}

// ServiceIDs returns the ids of a Service's ports, in order.
func (t Table) ServiceIDs(name model.Name) (ids []uint32) {
	want := nameEntry(tables.ServiceName{Port: model.PortName{Service: name}})
	for id := range t.maps.ServiceName.Len() {
		if e := t.maps.ServiceName.At(id); e.Family != 0 && e.Name == want.Name && e.Namespace == want.Namespace {
			ids = append(ids, id)
		}
	}
	return ids
}

func (t Table) snapshotHashes(s *tables.Snapshot) error {
	err := bpfmap.Each(t.maps.BlFrontend, func(key *bpf.SockBlFrontendKey, value *bpf.SockBlFrontendEntry) {
		s.Frontends[frontendKeyOf(key)] = storedFrontend(value)
	})
	if err != nil {
		return err
	}
	return t.snapshotOthers(s)
}

// snapshotOthers reads the tables that are small.
func (t Table) snapshotOthers(s *tables.Snapshot) error {
	nodes, err := nodemap.New(t.maps).List()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		s.Nodes[n.ID] = n.Node
	}
	err = bpfmap.Each(t.maps.BlSrcrange, func(key *bpf.SockBlSrcrangeKey, _ *uint32) {
		s.SourceRanges = append(s.SourceRanges, tables.SourceRange{
			Service: key.Service,
			Prefix:  bpf.PrefixOf(key.Addr, key.PrefixLen-32),
		})
	})
	if err != nil {
		return err
	}
	if s.ServiceCIDRs, err = t.ServiceCIDRs(); err != nil {
		return err
	}
	err = bpfmap.Each(t.maps.BlForeign, func(key *bpf.SockBlCidrKey, _ *uint32) { s.Foreign = append(s.Foreign, key.Addr.Netip()) })
	if err != nil {
		return err
	}
	err = bpfmap.Each(t.maps.BlNodeId, func(key *bpf.SockBlAddr, id *uint32) { s.NodeIDs[key.Netip()] = uint16(*id) })
	if err != nil {
		return err
	}
	return bpfmap.Each(t.maps.BlNodeAddr, func(key *bpf.SockBlAddr, flags *uint32) {
		hostOnly := *flags&uint32(bpf.SockBlNodeAddrFlagBL_NODE_ADDR_HOST_ONLY) != 0
		s.NodeAddrs[key.Netip()] = tables.NodeAddr{HostOnly: hostOnly}
	})
}

// ServiceCIDRs returns the ranges of the Services' addresses.
func (t Table) ServiceCIDRs() (list []netip.Prefix, err error) {
	err = bpfmap.Each(t.maps.BlServiceCidr, func(key *bpf.SockBlCidrKey, _ *uint32) {
		list = append(list, bpf.PrefixOf(key.Addr, key.PrefixLen))
	})
	return list, err
}

// slots returns the backend ids of a set; fewer than it counts when the table
// does not reach so far.
func (t Table) slots(set tables.Set) []uint32 {
	if set.Kind != policy.Backends {
		return nil
	}
	backends := make([]uint32, 0, min(set.Count, t.maps.Slot.Len()))
	for i := range set.Count {
		id := t.maps.Slot.At(set.First + i)
		if id == nil {
			break
		}
		backends = append(backends, *id)
	}
	return backends
}

// Limits returns how far the tables may grow.
func (t Table) Limits() tables.Limits {
	return tables.Limits{
		Services:     t.maps.Service.Limit(),
		Backends:     t.maps.Backend.Limit(),
		Slots:        t.maps.Slot.Limit(),
		Frontends:    bpfmap.LimitOf(t.maps.BlFrontend),
		SourceRanges: bpfmap.LimitOf(t.maps.BlSrcrange),
		Nodes:        bpfmap.LimitOf(t.maps.BlNode),
		NodeIDs:      bpfmap.LimitOf(t.maps.BlNodeId),
	}
}

// Generation returns the generation of the id's last user.
func (t Table) Generation(id uint32) uint32 {
	if e := t.maps.Backend.At(id); e != nil {
		return e.Generation
	}
	return 0
}

// Counts reports whether active connections are counted at the backends of a Service.
func (t Table) Counts(service uint32) bool {
	e := t.maps.Service.At(service)
	return e != nil && t.maps.Active.Len() > 0 && algorithmOf(e.Algorithm).Counts()
}
