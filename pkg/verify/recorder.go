package verify

import (
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

var _ tables.Store = (*recorder)(nil)

// recorder is a [tables.Store] that holds what the kernel does and remembers what a sync would
// write. A nil pointer stands for an entry that would be deleted. It has more than 25 methods because
// a [tables.Store] has.
type recorder struct {
	table  servicemap.Table
	limits tables.Limits
	have   tables.Snapshot

	names     map[uint32]*tables.ServiceName
	services  map[uint32]tables.Service
	backends  map[uint32]tables.Backend
	slots     map[uint32][]uint32 // by the first
	frontends map[tables.FrontendKey]*tables.Frontend
	ranges    map[tables.SourceRange]bool
	cidrs     map[netip.Prefix]bool
	foreign   map[netip.Addr]bool
	nodeAddrs map[netip.Addr]*tables.NodeAddr
	nodes     map[uint16]*tables.Node
	nodeIDs   map[netip.Addr]uint16 // 0: deleted
}

// Outlier returns what the kernel's table knows of a backend.
func (r *recorder) Outlier(id, generation uint32) tables.Outlier {
	return r.table.Outlier(id, generation)
}

// PutOutlier is never asked for: only an agent ejects.
func (r *recorder) PutOutlier(uint32, uint32, tables.Outlier) error { return nil }

// Now returns the time of the kernel's table.
func (r *recorder) Now() (time.Duration, error) { return r.table.Now() }

func newRecorder(maps *bpfmap.Maps, have tables.Snapshot) *recorder {
	return &recorder{
		table: servicemap.New(maps), limits: servicemap.New(maps).Limits(), have: have,
		names:     make(map[uint32]*tables.ServiceName),
		services:  make(map[uint32]tables.Service),
		backends:  make(map[uint32]tables.Backend),
		slots:     make(map[uint32][]uint32),
		frontends: make(map[tables.FrontendKey]*tables.Frontend),
		ranges:    make(map[tables.SourceRange]bool),
		cidrs:     make(map[netip.Prefix]bool),
		foreign:   make(map[netip.Addr]bool),
		nodeAddrs: make(map[netip.Addr]*tables.NodeAddr),
		nodes:     make(map[uint16]*tables.Node),
		nodeIDs:   make(map[netip.Addr]uint16),
	}
}

// Limits are those of the maps.
func (r *recorder) Limits() tables.Limits { return r.limits }

// Reserve does nothing: nothing is written.
func (r *recorder) Reserve(_, _, _ uint32) error { return nil }

// Barrier does nothing: nothing that a program may read has changed.
func (r *recorder) Barrier() error { return nil }

// Generation is that in the kernel, or that of a write.
func (r *recorder) Generation(id uint32) uint32 {
	if b, ok := r.backends[id]; ok {
		return b.Generation
	}
	return r.table.Generation(id)
}

// PutServiceName remembers the write, as the methods below do.
func (r *recorder) PutServiceName(id uint32, name tables.ServiceName) error {
	r.names[id] = &name
	return nil
}

// ClearServiceName remembers the write.
func (r *recorder) ClearServiceName(id uint32) error {
	r.names[id] = nil
	return nil
}

// PutService remembers the write.
func (r *recorder) PutService(id uint32, service tables.Service) error {
	r.services[id] = service
	return nil
}

// PutBackend remembers the write.
func (r *recorder) PutBackend(id uint32, backend tables.Backend) error {
	r.backends[id] = backend
	return nil
}

// PutSlots remembers the write.
func (r *recorder) PutSlots(first uint32, backends []uint32) error {
	r.slots[first] = append([]uint32(nil), backends...)
	return nil
}

// PutFrontend remembers the write.
func (r *recorder) PutFrontend(key tables.FrontendKey, frontend tables.Frontend) error {
	r.frontends[key] = &frontend
	return nil
}

// DeleteFrontend remembers the write.
func (r *recorder) DeleteFrontend(key tables.FrontendKey) error {
	r.frontends[key] = nil
	return nil
}

// PutSourceRange remembers the write.
func (r *recorder) PutSourceRange(s tables.SourceRange) error {
	r.ranges[s] = true
	return nil
}

// DeleteSourceRange remembers the write.
func (r *recorder) DeleteSourceRange(s tables.SourceRange) error {
	r.ranges[s] = false
	return nil
}

// PutServiceCIDR remembers the write.
func (r *recorder) PutServiceCIDR(p netip.Prefix) error {
	r.cidrs[p] = true
	return nil
}

// DeleteServiceCIDR remembers the write.
func (r *recorder) DeleteServiceCIDR(p netip.Prefix) error {
	r.cidrs[p] = false
	return nil
}

// PutForeign remembers the write.
func (r *recorder) PutForeign(addr netip.Addr) error {
	r.foreign[addr] = true
	return nil
}

// DeleteForeign remembers the write.
func (r *recorder) DeleteForeign(addr netip.Addr) error {
	r.foreign[addr] = false
	return nil
}

// PutNodeAddr remembers the write.
func (r *recorder) PutNodeAddr(addr netip.Addr, a tables.NodeAddr) error {
	r.nodeAddrs[addr] = &a
	return nil
}

// DeleteNodeAddr remembers the write.
func (r *recorder) DeleteNodeAddr(addr netip.Addr) error {
	r.nodeAddrs[addr] = nil
	return nil
}

// PutNode remembers the write.
func (r *recorder) PutNode(id uint16, n tables.Node) error {
	r.nodes[id] = &n
	return nil
}

// ClearNode remembers the write.
func (r *recorder) ClearNode(id uint16) error {
	r.nodes[id] = nil
	return nil
}

// PutNodeID remembers the write.
func (r *recorder) PutNodeID(addr netip.Addr, id uint16) error {
	r.nodeIDs[addr] = id
	return nil
}

// DeleteNodeID remembers the write.
func (r *recorder) DeleteNodeID(addr netip.Addr) error {
	r.nodeIDs[addr] = 0
	return nil
}
