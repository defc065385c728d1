package metrics

import (
	"cmp"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
)

// maxFaulty is how many Services with wrong settings have a metric of their own. Tenants can have any
// number of them.
const maxFaulty = 100

// Faults logs and collects the settings of Services that are wrong. Make one with
// [NewFaults].
type Faults struct {
	services, settings *prometheus.Desc

	mu     sync.Mutex
	faulty map[model.Name]int
}

// NewFaults registers the metrics.
func NewFaults(reg prometheus.Registerer) *Faults {
	f := &Faults{
		services: prometheus.NewDesc("beeline_services_with_invalid_settings",
			"Services that beeline_service_invalid_settings is about.", nil, nil),
		settings: prometheus.NewDesc("beeline_service_invalid_settings",
			"Settings of the Service and its EndpointSlices that are wrong, so that the defaults count in their place, or that ask for more room than there is. Only of 100 Services, as many namespaces as can be among them.",
			[]string{"namespace", "service"}, nil),
		faulty: make(map[model.Name]int),
	}
	reg.MustRegister(f)
	return f
}

// Observe takes how many faults a Service has now, and logs those that it had not before; of others
// there are so many more.
func (f *Faults) Observe(service model.Name, all int, added []model.Fault, more int) {
	f.note(service, all)
	if all == 0 {
		klog.InfoS("Settings of a Service are valid again", "service", service)
	}
	for _, fault := range added {
		if fault.Partly {
			klog.InfoS("Service is served with less than it asks for", "service", service, "fault", fault)
			continue
		}
		klog.InfoS("Setting of a Service is invalid, using its default", "service", service, "fault", fault)
	}
	if more > 0 {
		klog.InfoS("More settings of a Service are invalid", "service", service, "more", more)
	}
}

func (f *Faults) note(service model.Name, all int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if all == 0 {
		delete(f.faulty, service)
	} else {
		f.faulty[service] = all
	}
}

// Describe implements [prometheus.Collector].
func (f *Faults) Describe(ch chan<- *prometheus.Desc) {
	ch <- f.services
	ch <- f.settings
}

// Collect implements [prometheus.Collector].
func (f *Faults) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(f.services, prometheus.GaugeValue, float64(len(f.faulty)))
	for _, name := range f.chosen() {
		ch <- prometheus.MustNewConstMetric(f.settings, prometheus.GaugeValue, float64(f.faulty[name]), name.Namespace, name.Name)
	}
}

// chosen returns the Services that have a metric of their own: the first of each namespace, the second
// ones, and so on. The caller holds the lock.
func (f *Faults) chosen() []model.Name {
	names := make([]model.Name, 0, len(f.faulty))
	for name := range f.faulty {
		names = append(names, name)
	}
	slices.SortFunc(names, model.Name.Compare)
	if len(names) <= maxFaulty {
		return names
	}
	place, begin := make(map[model.Name]int, len(names)), 0
	for i, name := range names {
		if name.Namespace != names[begin].Namespace {
			begin = i
		}
		place[name] = i - begin
	}
	slices.SortStableFunc(names, func(a, b model.Name) int { return cmp.Compare(place[a], place[b]) })
	return names[:maxFaulty]
}
