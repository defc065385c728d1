package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/datapath"
)

// Devices collects how many network devices are served and are not. Make one with
// [NewDevices].
type Devices struct {
	count func() map[datapath.DeviceCount]int
	desc  *prometheus.Desc
}

// NewDevices returns a collector of what count returns.
func NewDevices(count func() map[datapath.DeviceCount]int) *Devices {
	return &Devices{count, prometheus.NewDesc("beeline_devices",
		"Network devices by what they are for (clients, pods, backends) and whether the programs for packets run on them (served) or could not be attached (failed).",
		[]string{"role", "state"}, nil)}
}

// Describe implements [prometheus.Collector].
func (d *Devices) Describe(ch chan<- *prometheus.Desc) { ch <- d.desc }

// Collect implements [prometheus.Collector].
func (d *Devices) Collect(ch chan<- prometheus.Metric) {
	for kind, n := range d.count() {
		state := "failed"
		if kind.Served {
			state = "served"
		}
		ch <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, float64(n), kind.Role, state)
	}
}
