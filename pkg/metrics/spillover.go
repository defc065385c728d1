package metrics

import "github.com/prometheus/client_golang/prometheus"

// RegisterSpillOver registers the metrics of zone spill-over: how many Services spill over, and how many
// nodes do not say what their clients have open.
func RegisterSpillOver(reg prometheus.Registerer, services, silent func() int) {
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	reg.MustRegister(
		gauge("beeline_services_spilling_over", "Services of which a part of the new connections of this node goes to other zones, by zone spill-over.", services),
		gauge("beeline_spill_over_silent_nodes", "Other nodes that have not answered lately how many active connections their clients have, while there are Services with zone spill-over.", silent),
	)
}
