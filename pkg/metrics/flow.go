package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/flow"
)

// Flows holds the metrics of the flow table. Make one with [NewFlows].
type Flows struct {
	size     int
	used     prometheus.Gauge
	free     prometheus.Gauge
	halfOpen prometheus.Gauge
	expired  prometheus.Counter
	evicted  *prometheus.CounterVec
}

// The states of evicted flows.
const (
	evictedEstablished = "established"
	evictedHalfOpen    = "half_open"
)

// NewFlows registers the metrics of a table with room for size flows.
func NewFlows(reg prometheus.Registerer, size int) *Flows {
	f := &Flows{
		size: size,
		used: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_flows",
			Help: "Connections of clients outside of the node in the flow table.",
		}),
		free: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_flows_free",
			Help: "Connections that the flow table still has room for before least recently used entries are evicted.",
		}),
		halfOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_flows_half_open",
			Help: "Half-open connections in the flow table: no packet of the client after a reply yet.",
		}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "beeline_flows_expired_total",
			Help: "Connections removed from the flow table because they were idle for longer than their timeout.",
		}),
	}
	f.evicted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "beeline_flows_evicted_total",
		Help: "Connections evicted from the full flow table by the kernel, by state; a lower bound. Evicted established connections break; evictions of half-open ones do no harm outside of a SYN flood.",
	}, []string{"state"})
	f.free.Set(float64(size))
	for _, state := range []string{evictedEstablished, evictedHalfOpen} {
		f.evicted.WithLabelValues(state)
	}
	reg.MustRegister(f.used, f.free, f.halfOpen, f.expired, f.evicted)
	return f
}

// Observe takes the outcome of a walk over the table.
func (f *Flows) Observe(w flow.Walk) {
	used := w.Flows - w.Expired
	f.used.Set(float64(used))
	f.free.Set(float64(max(0, f.size-(used-w.Overflow))))
	f.halfOpen.Set(float64(w.HalfOpen + w.Overflow))
	f.expired.Add(float64(w.Expired))
	f.evicted.WithLabelValues(evictedEstablished).Add(float64(w.EvictedEstablished))
	f.evicted.WithLabelValues(evictedHalfOpen).Add(float64(w.EvictedHalfOpen))
}
