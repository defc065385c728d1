package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestSockets counts all that were ever destroyed.
func TestSockets(t *testing.T) {
	registry := prometheus.NewRegistry()
	sockets := NewSockets(registry)
	sockets.Observe(2)
	sockets.Observe(3)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "beeline_udp_sockets_destroyed_total" ||
		families[0].GetMetric()[0].GetCounter().GetValue() != 5 {
		t.Errorf("metrics are %v", families)
	}
}
