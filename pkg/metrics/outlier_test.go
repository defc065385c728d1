package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestOutliers: endpoints that are let in again are ejected no more, and have been.
func TestOutliers(t *testing.T) {
	reg := prometheus.NewRegistry()
	o := NewOutliers(reg)
	o.Observe(2, 2)
	o.Observe(1, 1)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	if got["beeline_endpoints_ejected"] != 1 || got["beeline_endpoint_ejections_total"] != 3 {
		t.Errorf("%v, want 1 endpoint that is ejected, of 3 that were", got)
	}
}
