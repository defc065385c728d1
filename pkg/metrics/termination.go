package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/termination"
)

// Termination exports which endpoints of this node terminate. Make one with [NewTermination].
type Termination struct {
	limit                  int
	endpoints, connections prometheus.Gauge
	each                   *prometheus.GaugeVec
	shown                  map[[3]string]bool // labels of each
}

// NewTermination registers the metrics. Up to limit endpoints have one of their own: those with the most
// connections.
func NewTermination(reg prometheus.Registerer, limit int) *Termination {
	t := &Termination{
		limit: limit,
		endpoints: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_terminating_endpoints",
			Help: "Endpoints of Services on this node that terminate.",
		}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_terminating_connections",
			Help: "TCP connections, of clients anywhere, that endpoints on this node have which terminate.",
		}),
		each: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "beeline_terminating_endpoint_connections",
			Help: "TCP connections, of clients anywhere, that an endpoint on this node has which terminates. Only of some: serviceMetrics.",
		}, []string{"namespace", "service", "endpoint"}),
	}
	reg.MustRegister(t.endpoints, t.connections, t.each)
	return t
}

// Observe takes the endpoints that terminate, as counted last.
func (t *Termination) Observe(all []termination.Endpoint) {
	sum := 0
	for i := range all {
		sum += all[i].Connections
	}
	t.endpoints.Set(float64(len(all)))
	t.connections.Set(float64(sum))
	most := slices.SortedStableFunc(slices.Values(all), func(a, b termination.Endpoint) int {
		return cmp.Compare(b.Connections, a.Connections)
	})
	was := t.shown
	t.shown = make(map[[3]string]bool)
	for _, e := range most[:min(t.limit, len(most))] {
		labels := [3]string{e.Service.Namespace, e.Service.Name, e.AddrPort.String()}
		t.each.WithLabelValues(labels[:]...).Set(float64(e.Connections))
		t.shown[labels] = true
	}
	for labels := range was {
		if !t.shown[labels] {
			t.each.DeleteLabelValues(labels[:]...)
		}
	}
}
