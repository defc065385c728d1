package bpfmap

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Snapshot reads the tables. While an agent writes, the parts of the snapshot may
// be of slightly different times.
func (m *Maps) Snapshot() (tables.Snapshot, error) {
	s := tables.Snapshot{
		Names:     m.ServiceNames(),
		Services:  make(map[uint32]tables.Service),
		Backends:  make(map[uint32]tables.Backend),
		Slots:     m.slots,
		Frontends: make(map[tables.FrontendKey]tables.Frontend),
		NodeAddrs: make(map[netip.Addr]tables.NodeAddr),
		Nodes:     make(map[uint16]tables.Node),
		NodeIDs:   make(map[netip.Addr]uint16),
	}
	for id := range m.service.len() {
		if _, ok := s.Names[id]; !ok {
			continue
		}
		e := m.service.at(id)
		s.Services[id] = tables.Service{
			Cluster:         setOf(atomic.LoadUint64(&e.Cluster)),
			Local:           setOf(atomic.LoadUint64(&e.Local)),
			AffinitySeconds: e.Affinity,
			Algorithm:       algorithmOf(e.Algorithm),
			Tunnels:         e.Forwarding == uint16(bpf.SockBlForwardingBL_FORWARDING_DSR),
		}
	}
	for id := range m.backend.len() {
		if e := m.backend.at(id); e.State != 0 {
			s.Backends[id] = tables.Backend{
				AddrPort:   netip.AddrPortFrom(e.Addr.Netip(), bpf.Hton16(e.Port)),
				Service:    e.Service,
				State:      tables.BackendState(e.State),
				Generation: e.Generation,
				Weight:     e.Weight,
				Node:       e.Node,
			}
		}
	}
	err := m.EachNode(func(id uint16, n tables.Node, _ *bpf.SockBlNodeEntry) { s.Nodes[id] = n })
	if err != nil {
		return s, err
	}
	return s, m.snapshotHashes(&s)
}

// ServiceNames returns what the Service ids in use stand for.
func (m *Maps) ServiceNames() map[uint32]tables.ServiceName {
	names := make(map[uint32]tables.ServiceName)
	for id := range m.name.len() {
		if e := m.name.at(id); e.Family != 0 {
			names[id] = serviceNameOf(e)
		}
	}
	return names
}

// ServiceName returns what a Service id stands for; false when it is not in use.
func (m *Maps) ServiceName(id uint32) (tables.ServiceName, bool) {
	e := m.name.at(id)
	if e == nil || e.Family == 0 {
		return tables.ServiceName{}, false
	}
	return serviceNameOf(e), true
}

func (m *Maps) snapshotHashes(s *tables.Snapshot) error {
	err := Each(m.BlFrontend, func(key *bpf.SockBlFrontendKey, value *bpf.SockBlFrontendEntry) {
		s.Frontends[frontendKeyOf(key)] = tables.Frontend{
			Service: value.Service,
			Kind:    tables.FrontendKind(value.Kind),
			Flags:   tables.FrontendFlags(value.Flags),
		}
	})
	if err != nil {
		return err
	}
	err = Each(m.BlSrcrange, func(key *bpf.SockBlSrcrangeKey, _ *uint32) {
		s.SourceRanges = append(s.SourceRanges, tables.SourceRange{
			Service: key.Service,
			Prefix:  bpf.PrefixOf(key.Addr, key.PrefixLen-32),
		})
	})
	if err != nil {
		return err
	}
	err = Each(m.BlServiceCidr, func(key *bpf.SockBlCidrKey, _ *uint32) {
		s.ServiceCIDRs = append(s.ServiceCIDRs, bpf.PrefixOf(key.Addr, key.PrefixLen))
	})
	if err != nil {
		return err
	}
	err = Each(m.BlNodeId, func(key *bpf.SockBlAddr, id *uint32) { s.NodeIDs[key.Netip()] = uint16(*id) })
	if err != nil {
		return err
	}
	return Each(m.BlNodeAddr, func(key *bpf.SockBlAddr, flags *uint32) {
		hostOnly := *flags&uint32(bpf.SockBlNodeAddrFlagBL_NODE_ADDR_HOST_ONLY) != 0
		s.NodeAddrs[key.Netip()] = tables.NodeAddr{HostOnly: hostOnly}
	})
}

// Each calls fn for every entry of a hash or trie. A hash is read bucket by
// bucket, so entries that come and go meanwhile do not lead it astray.
func Each[K, V any](kernelMap *ebpf.Map, fn func(*K, *V)) error {
	var cursor ebpf.MapBatchCursor
	size := min(batch, kernelMap.MaxEntries())
	keys, values := make([]K, size), make([]V, size)
	for {
		n, err := kernelMap.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			fn(&keys[i], &values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", kernelMap, err)
		}
	}
}

// batch is how many entries are read by one system call; more than any bucket of
// a hash holds.
const batch = 4096

// slots returns the backend ids of a set; fewer than it counts when the table
// does not reach so far.
func (m *Maps) slots(set tables.Set) []uint32 {
	if set.Kind != policy.Backends {
		return nil
	}
	backends := make([]uint32, 0, min(set.Count, m.slot.len()))
	for i := range set.Count {
		id := m.slot.at(set.First + i)
		if id == nil {
			break
		}
		backends = append(backends, *id)
	}
	return backends
}

// Agent is what the agent tells of itself.
type Agent struct {
	PID     int
	Started time.Time
	Synced  time.Time // of the last sync; zero is never
	Syncs   uint64    // since Started
	Pending uint64    // Services whose last sync failed
	Version string
	Node    string
	Source  string // where Services come from
	Cgroup  string // path of the cgroup whose sockets are served
	SizedBy string // what the sizes of the tables follow from
	// Evicted are the flows that the kernel has taken out of a full table since Started, as
	// far as is known.
	Evicted Evicted
	// TunnelPort is the UDP port of the tunnel; 0: the node takes no part in it.
	TunnelPort uint16
	// KeepsSockets: the kernel cannot destroy connected UDP sockets whose endpoint is gone.
	KeepsSockets bool
}

// Evicted counts flows that were taken out of a full table.
type Evicted struct {
	Established, HalfOpen uint64
	// Last is when an established one was noticed last; zero is never.
	Last time.Time
}

// SetEvicted notes what has been evicted since the agent's start.
func (m *Maps) SetEvicted(v Evicted) {
	e := m.Entries.Agent
	atomic.StoreUint64(&e.EvictedEstablished, v.Established)
	atomic.StoreUint64(&e.EvictedHalfOpen, v.HalfOpen)
	if !v.Last.IsZero() {
		atomic.StoreUint64(&e.Evicted, uint64(v.Last.UnixNano()))
	}
}

// SetAgent writes what the agent tells of itself.
func (m *Maps) SetAgent(a Agent) {
	e := m.Entries.Agent
	e.Pid = uint32(a.PID)
	e.Started = uint64(a.Started.UnixNano())
	e.TunnelPort, e.Flags = a.TunnelPort, 0
	if a.KeepsSockets {
		e.Flags |= uint16(bpf.SockBlAgentFlagBL_AGENT_KEEPS_SOCKETS)
	}
	bpf.PutString(e.Version[:], a.Version)
	bpf.PutString(e.Node[:], a.Node)
	bpf.PutString(e.Source[:], a.Source)
	bpf.PutString(e.Cgroup[:], a.Cgroup)
	bpf.PutString(e.SizedBy[:], a.SizedBy)
	e.Synced, e.Syncs, e.Pending = 0, 0, 0
	e.EvictedEstablished, e.EvictedHalfOpen, e.Evicted = 0, 0, 0
}

// SetSynced notes the end of a sync after which pending Services wait for a retry.
func (m *Maps) SetSynced(at time.Time, pending int) {
	e := m.Entries.Agent
	atomic.StoreUint64(&e.Synced, uint64(at.UnixNano()))
	atomic.AddUint64(&e.Syncs, 1)
	atomic.StoreUint64(&e.Pending, uint64(pending))
}

// Agent returns what the agent, running or not, told of itself last.
func (m *Maps) Agent() Agent {
	e := m.Entries.Agent
	a := Agent{
		PID:     int(e.Pid),
		Started: time.Unix(0, int64(e.Started)),
		Syncs:   atomic.LoadUint64(&e.Syncs),
		Pending: atomic.LoadUint64(&e.Pending),
		Version: bpf.StringOf(e.Version[:]),
		Node:    bpf.StringOf(e.Node[:]),
		Source:  bpf.StringOf(e.Source[:]),
		Cgroup:  bpf.StringOf(e.Cgroup[:]),
		SizedBy: bpf.StringOf(e.SizedBy[:]),
		Evicted: Evicted{
			Established: atomic.LoadUint64(&e.EvictedEstablished),
			HalfOpen:    atomic.LoadUint64(&e.EvictedHalfOpen),
		},

		TunnelPort:   e.TunnelPort,
		KeepsSockets: e.Flags&uint16(bpf.SockBlAgentFlagBL_AGENT_KEEPS_SOCKETS) != 0,
	}
	if evicted := atomic.LoadUint64(&e.Evicted); evicted != 0 {
		a.Evicted.Last = time.Unix(0, int64(evicted))
	}
	if synced := atomic.LoadUint64(&e.Synced); synced != 0 {
		a.Synced = time.Unix(0, int64(synced))
	}
	return a
}

// Affinity is a client that goes on to a backend.
type Affinity struct {
	Netns   uint32 // the low half of the cookie of the client's network namespace
	Service uint32
	Backend uint32
	// Valid is false when the backend has left its sets since.
	Valid bool
	Idle  time.Duration // since the last new connection
}

// Affinities returns the entries of session affinity, those that have expired
// among them.
func (m *Maps) Affinities() ([]Affinity, error) {
	now, err := bpf.Clock()
	if err != nil {
		return nil, err
	}
	var list []Affinity
	err = Each(m.BlAffinity, func(key *bpf.SockBlAffinityKey, value *bpf.SockBlAffinityEntry) {
		a := Affinity{
			Netns:   key.Netns,
			Service: key.Service,
			Backend: value.Backend.Id,
			Idle:    max(0, now-time.Duration(value.LastUsed)),
		}
		b := m.backend.at(a.Backend)
		a.Valid = b != nil && b.State != 0 && b.Generation == value.Backend.Generation
		list = append(list, a)
	})
	return list, err
}

// ServiceStat counts what happened at a Service's frontends.
type ServiceStat struct {
	Connections uint64
	Refused     uint64
}

// ServiceStats returns the counters of the Service ids below end.
func (m *Maps) ServiceStats(end uint32) ([]ServiceStat, error) {
	stats := make([]ServiceStat, 0, end)
	outer := m.BlServiceStat
	for i := uint32(0); uint32(len(stats)) < end; i++ {
		chunk, err := lookupChunk(outer, i)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
		}
		stats, err = appendStats(stats, chunk, end-uint32(len(stats)))
		chunk.Close()
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
		}
	}
	return stats, nil
}

// appendStats adds up to count entries of a chunk, summed over the CPUs.
func appendStats(stats []ServiceStat, chunk *ebpf.Map, count uint32) ([]ServiceStat, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	count = min(count, chunk.MaxEntries())
	keys := make([]uint32, count)
	values := make([]bpf.SockBlServiceStatEntry, int(count)*cpus)
	var cursor ebpf.MapBatchCursor
	if _, err := chunk.BatchLookup(&cursor, keys, values, nil); err != nil && count < chunk.MaxEntries() {
		return nil, err
	}
	for i := range count {
		var s ServiceStat
		for _, v := range values[int(i)*cpus : int(i+1)*cpus] {
			s.Connections += v.Connections
			s.Refused += v.Refused
		}
		stats = append(stats, s)
	}
	return stats, nil
}

// Effect is what became of a connection or packet that is counted.
type Effect string

// The effects.
const (
	Refused Effect = "refused" // the client was told
	Dropped Effect = "dropped" // the client got no answer
	Served  Effect = "served"
	Passed  Effect = "passed" // left to others, untouched
)

// Reason is a counter of connections or packets by what became of them and why.
type Reason struct {
	Name   string // as in metrics
	Count  uint64
	Effect Effect
}

// reasons names the counters; the index is enum bl_reason. One without a name counts no
// event.
var reasons = [bpf.SockBlReasonBL_REASON_COUNT]Reason{
	bpf.SockBlReasonBL_REASON_NO_ENDPOINT:         {Name: "no_endpoint", Effect: Refused},
	bpf.SockBlReasonBL_REASON_NO_LOCAL_ENDPOINT:   {Name: "no_local_endpoint", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_SOURCE_RANGE:        {Name: "source_range", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_UNDECLARED_PORT:     {Name: "undeclared_port", Effect: Refused},
	bpf.SockBlReasonBL_REASON_UNALLOCATED_ADDRESS: {Name: "unallocated_address", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_BROKEN_TABLE:        {Name: "broken_table", Effect: Refused},
	bpf.SockBlReasonBL_REASON_SOCK_NOT_STORED:     {Name: "sock_not_stored", Effect: Served},
	bpf.SockBlReasonBL_REASON_UDP_PEER_NOT_STORED: {Name: "udp_peer_not_stored", Effect: Served},
	bpf.SockBlReasonBL_REASON_AFFINITY_NOT_STORED: {Name: "affinity_not_stored", Effect: Served},
	bpf.SockBlReasonBL_REASON_NO_SOURCE_PORT:      {Name: "no_source_port", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_FLOW_NOT_STORED:     {Name: "flow_not_stored", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_XDP_SENT:            {Name: "xdp_sent", Effect: Served},
	bpf.SockBlReasonBL_REASON_FRAGMENT_NOT_KEPT:   {Name: "fragment_not_kept", Effect: Passed},
	bpf.SockBlReasonBL_REASON_PACKET_TRANSLATED:   {Name: "packet_translated", Effect: Served},
	bpf.SockBlReasonBL_REASON_PACKET_PASSED:       {Name: "packet_passed", Effect: Passed},
	bpf.SockBlReasonBL_REASON_TUNNEL_SENT:         {Name: "tunnel_sent", Effect: Served},
	bpf.SockBlReasonBL_REASON_TUNNEL_TAKEN:        {Name: "tunnel_taken", Effect: Served},
	bpf.SockBlReasonBL_REASON_TUNNEL_STRANGER:     {Name: "tunnel_stranger", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_MALFORMED:    {Name: "tunnel_malformed", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_NO_BACKEND:   {Name: "tunnel_no_backend", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_FLOW_OVERFLOW:       {Name: "flow_overflow", Effect: Served},
	bpf.SockBlReasonBL_REASON_NO_SOURCE_ADDRESS:   {Name: "no_source_address", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_NO_SERVICE:   {Name: "tunnel_no_service", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_NO_FLOW:      {Name: "tunnel_no_flow", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_WRONG_SECRET: {Name: "tunnel_wrong_secret", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_SPOOFED:      {Name: "tunnel_spoofed", Effect: Dropped},
}

// Reasons returns the counters, in the order of enum bl_reason.
func (m *Maps) Reasons() ([]Reason, error) {
	list := make([]Reason, 0, len(reasons))
	for i, r := range reasons {
		if r.Name == "" {
			continue
		}
		var err error
		if r.Count, err = m.Counter(bpf.SockBlReason(i)); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}
