package inspect

import (
	"cmp"
	"net/netip"
	"slices"
)

// Add adds what has happened on another node: the figures of a Service, a port and a backend are
// summed, a map is that of the node where it is fuller. The share that an algorithm intends is of
// one node's connections, as is why a set is empty: none is left. Ids are those of some node. Ports and
// backends come in the same order whichever node is added first.
func (t *Top) Add(o *Top) {
	if o.Time.After(t.Time) {
		t.Time, t.Seconds = o.Time, o.Seconds
	}
	t.EvictedPerSecond += o.EvictedPerSecond
	t.New = t.New.plus(o.New)
	t.Reasons = sum(t.Reasons, o.Reasons, func(r *TopReason) string { return r.Reason }, (*TopReason).add)
	t.Maps = sum(t.Maps, o.Maps, func(m *Map) string { return m.Name }, (*Map).fuller)
	t.Services = sum(t.Services, o.Services, (*TopService).FullName, (*TopService).add)
}

// sum adds each of some items to the one of the same key, where there is one, else to the list.
func sum[T any, K comparable](list, items []T, key func(*T) K, add func(to *T, item *T)) []T {
	at := make(map[K]int, len(list))
	for i := range list {
		at[key(&list[i])] = i
	}
	for i := range items {
		if j, ok := at[key(&items[i])]; ok {
			add(&list[j], &items[i])
			continue
		}
		at[key(&items[i])] = len(list)
		list = append(list, *new(T))
		add(&list[len(list)-1], &items[i])
	}
	return slices.Clip(list)
}

// fuller makes m the other one where that is fuller.
func (m *Map) fuller(o *Map) {
	if m.Name == "" || o.Fill() > m.Fill() {
		*m = *o
	}
}

func (r *TopReason) add(o *TopReason) {
	perSecond := r.PerSecond + o.PerSecond
	*r = *o
	r.PerSecond = perSecond
}

func (s *TopService) add(o *TopService) {
	s.Namespace, s.Name = o.Namespace, o.Name
	s.Rates.Add(o.Rates)
	s.BackendCounts = s.BackendCounts.plus(o.BackendCounts)
	s.Ports = sum(s.Ports, o.Ports, func(p *TopPort) PortName { return p.key() }, (*TopPort).add)
	slices.SortFunc(s.Ports, func(a, b TopPort) int { return a.key().compare(b.key()) })
}

// plus returns those of two nodes, of which one may not have counted. There are at least as many as one of
// them has, and as are on both: each is on one node. With topology hints neither may have all.
func (c *BackendCounts) plus(o *BackendCounts) *BackendCounts {
	if c == nil || o == nil {
		return cmp.Or(c, o)
	}
	onNodes := c.BackendsOnNode + o.BackendsOnNode
	return &BackendCounts{max(c.Backends, o.Backends, onNodes), onNodes}
}

func (p *TopPort) add(o *TopPort) {
	p.PortName, p.Algorithm = o.PortName, o.Algorithm
	p.Rates.Add(o.Rates)
	p.Backends = sum(p.Backends, o.Backends, func(b *TopBackend) netip.AddrPort { return b.Address }, (*TopBackend).add)
	slices.SortFunc(p.Backends, func(a, b TopBackend) int { return a.Address.Compare(b.Address) })
	p.share()
}

func (b *TopBackend) add(o *TopBackend) {
	b.Address, b.OnNode, b.Node = o.Address, b.OnNode || o.OnNode, cmp.Or(b.Node, o.Node)
	b.Connections += o.Connections
	if b.New != nil || o.New != nil {
		n := b.NewCount() + o.NewCount()
		b.New = &n
	}
	b.Traffic = b.Traffic.plus(o.Traffic)
}
