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
	flows.Observe(flow.Walk{Flows: 35, Expired: 5, HalfOpen: 4, Overflow: 2, EvictedEstablished: 7, EvictedHalfOpen: 8})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"beeline_flows": 30, "beeline_flows_free": 72, "beeline_flows_half_open": 6, "beeline_flows_expired_total": 15,
		"beeline_flows_evicted_total established": 7, "beeline_flows_evicted_total half_open": 8,
	}
	if !maps.Equal(got, want) {
		t.Errorf("metrics are %v, want %v", got, want)
	}
}
