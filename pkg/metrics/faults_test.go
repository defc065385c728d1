package metrics

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/model"
)

// faultsOf returns the metrics of faults: of how many Services, and by Service.
func faultsOf(t *testing.T, registry *prometheus.Registry) (services int, settings map[model.Name]int) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	settings = make(map[model.Name]int)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch value := int(m.GetGauge().GetValue()); f.GetName() {
			case "beeline_services_with_invalid_settings":
				services = value
			case "beeline_service_invalid_settings":
				settings[model.Name{Namespace: m.GetLabel()[0].GetValue(), Name: m.GetLabel()[1].GetValue()}] = value
			default:
				t.Errorf("there is %s", f.GetName())
			}
		}
	}
	return services, settings
}

// TestFaults counts the faults that each Service has now.
func TestFaults(t *testing.T) {
	registry := prometheus.NewRegistry()
	faults := NewFaults(registry)
	web, dns := model.Name{Namespace: "shop", Name: "web"}, model.Name{Namespace: "shop", Name: "dns"}
	fault := model.Fault{Setting: "service.beeline.io/algorithm", Reason: "wrong"}
	faults.Observe(web, 1, []model.Fault{fault}, 0)
	faults.Observe(dns, 1, []model.Fault{fault}, 0)
	faults.Observe(web, 2, []model.Fault{fault}, 0)
	faults.Observe(dns, 0, nil, 0)
	services, settings := faultsOf(t, registry)
	if services != 1 || len(settings) != 1 || settings[web] != 2 {
		t.Errorf("%d Services, %v", services, settings)
	}
}

// TestManyFaults: however many Services of one namespace are wrong, those of others are named, and all
// are counted.
func TestManyFaults(t *testing.T) {
	registry := prometheus.NewRegistry()
	faults := NewFaults(registry)
	for i := range 3 * maxFaulty {
		faults.Observe(model.Name{Namespace: "a", Name: fmt.Sprint("svc-", i)}, 1, nil, 0)
	}
	others := []model.Name{{Namespace: "b", Name: "web"}, {Namespace: "b", Name: "dns"}, {Namespace: "c", Name: "web"}}
	for _, name := range others {
		faults.Observe(name, 2, nil, 0)
	}
	services, settings := faultsOf(t, registry)
	if services != 3*maxFaulty+len(others) || len(settings) != maxFaulty {
		t.Errorf("%d Services, %d of them named", services, len(settings))
	}
	for _, name := range others {
		if settings[name] != 2 {
			t.Errorf("%s has %d", name, settings[name])
		}
	}
}
