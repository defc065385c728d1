package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestFaults counts the faults that each Service has now.
func TestFaults(t *testing.T) {
	registry := prometheus.NewRegistry()
	faults := NewFaults(registry)
	web, dns := model.Name{Namespace: "shop", Name: "web"}, model.Name{Namespace: "shop", Name: "dns"}
	fault := model.Fault{Setting: "service.beeline.io/algorithm", Reason: "wrong"}
	faults.Observe(web, []model.Fault{fault})
	faults.Observe(dns, []model.Fault{fault})
	faults.Observe(web, []model.Fault{fault, fault})
	faults.Observe(dns, nil)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "beeline_service_invalid_settings" {
		t.Fatalf("metrics are %v", families)
	}
	all := families[0].GetMetric()
	if len(all) != 1 || all[0].GetGauge().GetValue() != 2 || all[0].GetLabel()[1].GetValue() != "web" {
		t.Errorf("faults are %v", all)
	}
}
