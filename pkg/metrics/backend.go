package metrics

import (
	"cmp"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Backends collects the active connections of some backends of the Service ports that have metrics
// of their own. Those of clients outside of the node are as of the last walk over the flow table.
type Backends struct {
	services    *Services
	table       servicemap.Table
	active      flowmap.Table
	limit       int
	connections *prometheus.Desc

	counting map[uint32]backendFlows // by the walk that is under way, by backend id

	mu      sync.Mutex
	counted map[uint32]backendFlows // by the last whole one
}

// backendFlows are the active flows to the user of a backend id.
type backendFlows struct {
	generation uint32
	flows      int
}

// NewBackends returns a collector. Up to limit backends of the Service ports of services have
// metrics of their own: those with the most active connections.
func NewBackends(maps *bpfmap.Maps, services *Services, limit int) *Backends {
	return &Backends{
		services: services, table: servicemap.New(maps), active: flowmap.New(maps), limit: limit,
		counting: make(map[uint32]backendFlows),
		connections: prometheus.NewDesc("beeline_backend_connections",
			"Active connections to a backend of the Service port, of clients outside of the node, and where the algorithm counts them of the node's sockets. Only of some: serviceMetrics.",
			append(slices.Clone(serviceLabels), "endpoint"), nil),
	}
}

// Count counts a flow of a walk.
func (b *Backends) Count(f *flowmap.Flow) {
	if b.limit == 0 || !f.Known || !f.State.Active() {
		return
	}
	c := b.counting[f.BackendID]
	if generation := b.table.Generation(f.BackendID); generation != c.generation {
		c = backendFlows{generation: generation}
	}
	c.flows++
	b.counting[f.BackendID] = c
}

// Walked ends a walk. What one that was cut short has counted is forgotten.
func (b *Backends) Walked(w flow.Walk) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.Whole {
		b.counted = b.counting
	}
	b.counting = make(map[uint32]backendFlows)
}

// Describe implements [prometheus.Collector].
func (b *Backends) Describe(ch chan<- *prometheus.Desc) { ch <- b.connections }

// backend is one with its metric.
type backend struct {
	tables.Backend
	id          uint32
	connections int
}

// Collect implements [prometheus.Collector].
func (b *Backends) Collect(ch chan<- prometheus.Metric) {
	if b.limit == 0 {
		return
	}
	names, stats, err := b.services.read()
	if err != nil {
		klog.ErrorS(err, "Counters of Services could not be read")
		return
	}
	chosen := make(map[uint32]bool)
	for _, id := range b.services.chosen(names, stats) {
		chosen[id] = true
	}
	for _, e := range b.busiest(chosen) {
		ch <- prometheus.MustNewConstMetric(b.connections, prometheus.GaugeValue, float64(e.connections),
			append(serviceValues(names[e.Service]), e.AddrPort.String())...)
	}
}

// busiest returns those backends of the Service ports that have metrics of their own.
func (b *Backends) busiest(services map[uint32]bool) []backend {
	b.mu.Lock()
	counted := b.counted
	b.mu.Unlock()
	var list []backend
	for id, entry := range b.table.Backends() {
		if !services[entry.Service] {
			continue
		}
		e := backend{Backend: entry, id: id}
		if c := counted[id]; c.generation == entry.Generation {
			e.connections = c.flows
		}
		sockets, _ := b.active.Active(id, entry.Generation)
		e.connections += int(sockets)
		list = append(list, e)
	}
	slices.SortFunc(list, func(x, y backend) int {
		return cmp.Or(cmp.Compare(y.connections, x.connections), cmp.Compare(x.id, y.id))
	})
	return list[:min(b.limit, len(list))]
}
