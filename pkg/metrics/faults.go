package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Faults logs and exports the settings of Services that are wrong. Make one with
// [NewFaults].
type Faults struct {
	gauge *prometheus.GaugeVec
}

// NewFaults registers the metric.
func NewFaults(reg prometheus.Registerer) *Faults {
	f := &Faults{gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "beeline_service_invalid_settings",
		Help: "Settings of the Service and its EndpointSlices that are wrong, so that the defaults count in their place, or that ask for more room than there is.",
	}, []string{"namespace", "service"})}
	reg.MustRegister(f.gauge)
	return f
}

// Observe takes the faults that a Service has now; each is logged once.
func (f *Faults) Observe(service model.Name, faults []model.Fault) {
	if len(faults) == 0 {
		f.gauge.DeleteLabelValues(service.Namespace, service.Name)
		klog.InfoS("Settings of a Service are valid again", "service", service)
		return
	}
	f.gauge.WithLabelValues(service.Namespace, service.Name).Set(float64(len(faults)))
	for _, fault := range faults {
		if fault.Partly {
			klog.InfoS("Service is served with less than it asks for", "service", service, "fault", fault)
			continue
		}
		klog.InfoS("Setting of a Service is invalid, using its default", "service", service, "fault", fault)
	}
}
