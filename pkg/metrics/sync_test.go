package metrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestProgrammed: a change that another machine's clock puts after its end took no time.
func TestProgrammed(t *testing.T) {
	registry := prometheus.NewRegistry()
	sync, end := NewSync(registry), time.Unix(100, 0)
	for _, family := range model.Families {
		sync.Programmed(family, end.Add(-2*time.Second), end)
		sync.Programmed(family, end.Add(3*time.Second), end)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range families {
		if f.GetName() != "kubeproxy_network_programming_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			seen++
			if h := m.GetHistogram(); h.GetSampleCount() != 2 || h.GetSampleSum() != 2 {
				t.Errorf("%v: %d changes took %v s", m.GetLabel(), h.GetSampleCount(), h.GetSampleSum())
			}
		}
	}
	if seen != len(model.Families) {
		t.Errorf("%d families measured", seen)
	}
}
