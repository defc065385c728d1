package metrics

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/flow"
)

// TestFlows shows what is left after each walk, and all that ever expired.
func TestFlows(t *testing.T) {
	registry := prometheus.NewRegistry()
	flows := NewFlows(registry, 100)
	flows.Observe(flow.Walk{Flows: 40, Expired: 10, Orphans: 3})
	flows.Observe(flow.Walk{Flows: 35, Expired: 5, HalfOpen: 4, Overflow: 2})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{"beeline_flows": 30, "beeline_flows_free": 72, "beeline_flows_half_open": 6, "beeline_flows_expired_total": 15}
	if !maps.Equal(got, want) {
		t.Errorf("metrics are %v, want %v", got, want)
	}
}
