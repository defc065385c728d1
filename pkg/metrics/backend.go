package metrics

import (
	"cmp"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Backends counts the active connections of backends, for [Services] to collect. Those of clients
// outside of the node are as of the last walk over the flow table.
type Backends struct {
	table       servicemap.Table
	active      flowmap.Table
	limit       int
	connections *prometheus.Desc
	traffic     trafficDescs

	counting map[uint32]backendFlows // by the walk that is under way, by backend id

	mu      sync.Mutex
	counted map[uint32]backendFlows // by the last whole one
}

// backendFlows are the active flows to the user of a backend id.
type backendFlows struct {
	generation uint32
	flows      int
}

// NewBackends returns what has counted nothing. Of the Service ports that have metrics of their own,
// up to limit backends have them, too: those with the most active connections.
func NewBackends(maps *bpfmap.Maps, limit int) *Backends {
	labels := append(slices.Clone(serviceLabels), "endpoint")
	return &Backends{
		table: servicemap.New(maps), active: flowmap.New(maps), limit: limit,
		counting: make(map[uint32]backendFlows),
		connections: prometheus.NewDesc("beeline_backend_connections",
			"Active connections to a backend of the Service port, of clients outside of the node, and where the algorithm counts them of the node's sockets. Only of some: serviceMetrics.",
			labels, nil),
		traffic: newTrafficDescs("backend", "a backend of the Service port", labels),
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

// backend is one with its metric.
type backend struct {
	tables.Backend
	id          uint32
	connections int
}

// collect sends the metrics of the backends of some Service ports. traffic is nil where none is
// counted.
func (b *Backends) collect(ch chan<- prometheus.Metric, names map[uint32]tables.ServiceName, services []uint32, traffic *statusmap.Traffics) {
	if b.limit == 0 {
		return
	}
	for _, e := range b.busiest(services) {
		values := append(serviceValues(names[e.Service]), e.AddrPort.String())
		ch <- prometheus.MustNewConstMetric(b.connections, prometheus.GaugeValue, float64(e.connections), values...)
		if traffic != nil {
			b.traffic.collect(ch, traffic.Backends[e.id], values)
		}
	}
}

// busiest returns those backends of some Service ports that have metrics of their own.
func (b *Backends) busiest(services []uint32) []backend {
	chosen := make(map[uint32]bool, len(services))
	for _, id := range services {
		chosen[id] = true
	}
	b.mu.Lock()
	counted := b.counted
	b.mu.Unlock()
	var list []backend
	for id, entry := range b.table.Backends() {
		if !chosen[entry.Service] {
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
