package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/termination"
)

// Termination collects which endpoints of this node terminate. Make one with [NewTermination].
type Termination struct {
	endpoints                func() []termination.Endpoint
	limit                    int
	number, connections, one *prometheus.Desc
}

// NewTermination returns a collector of what endpoints returns. Up to limit endpoints have a metric of
// their own: those with the most connections.
func NewTermination(endpoints func() []termination.Endpoint, limit int) *Termination {
	return &Termination{
		endpoints: endpoints, limit: limit,
		number: prometheus.NewDesc("beeline_terminating_endpoints",
			"Endpoints of Services on this node that terminate.", nil, nil),
		connections: prometheus.NewDesc("beeline_terminating_connections",
			"TCP connections, of clients anywhere, that endpoints on this node have which terminate.", nil, nil),
		one: prometheus.NewDesc("beeline_terminating_endpoint_connections",
			"TCP connections, of clients anywhere, that an endpoint on this node has which terminates. Only of some: serviceMetrics.",
			[]string{"namespace", "service", "endpoint"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (t *Termination) Describe(ch chan<- *prometheus.Desc) {
	ch <- t.number
	ch <- t.connections
	ch <- t.one
}

// Collect implements [prometheus.Collector].
func (t *Termination) Collect(ch chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	all, sum := t.endpoints(), 0
	for i := range all {
		sum += all[i].Connections
	}
	send(t.number, len(all))
	send(t.connections, sum)
	slices.SortStableFunc(all, func(a, b termination.Endpoint) int { return cmp.Compare(b.Connections, a.Connections) })
	for _, e := range all[:min(t.limit, len(all))] {
		send(t.one, e.Connections, e.Service.Namespace, e.Service.Name, e.AddrPort.String())
	}
}
