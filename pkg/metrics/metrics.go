// Package metrics exports what the agent and its datapath do.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/reconcile"
)

// Sync holds the metrics of the control plane. Make one with [NewSync].
type Sync struct {
	duration prometheus.Histogram
	services prometheus.Counter
	pending  prometheus.Gauge
	full     *prometheus.CounterVec
	used     *prometheus.GaugeVec
	free     *prometheus.GaugeVec
	last     prometheus.Gauge
}

// NewSync registers the metrics of the control plane.
func NewSync(reg prometheus.Registerer) *Sync {
	s := &Sync{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "beeline_sync_duration_seconds",
			Help:    "How long it took to bring a round of changes into the kernel.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 2, 18),
		}),
		services: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "beeline_sync_services_total",
			Help: "Services that were brought into the kernel, each change counted.",
		}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_sync_services_pending",
			Help: "Services whose last change is not wholly in the kernel and is tried again.",
		}),
		full: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "beeline_table_full_total",
			Help: "Rounds of changes in which a table had no room.",
		}, []string{"map"}),
		used: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "beeline_table_entries",
			Help: "Entries of a table that are in use.",
		}, []string{"map"}),
		free: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "beeline_table_entries_free",
			Help: "Entries that a table can still take.",
		}, []string{"map"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_sync_last_timestamp_seconds",
			Help: "When the last round of changes was in the kernel, seconds since the epoch.",
		}),
	}
	reg.MustRegister(s.duration, s.services, s.pending, s.full, s.used, s.free, s.last)
	return s
}

// Observe takes the outcome of a sync.
func (s *Sync) Observe(o reconcile.Sync) {
	s.duration.Observe(o.Duration.Seconds())
	s.services.Add(float64(o.Services))
	s.pending.Set(float64(o.Pending))
	s.last.Set(float64(o.Start.Add(o.Duration).UnixNano()) / 1e9)
	for name := range o.Full {
		s.full.WithLabelValues(name).Inc()
	}
	for _, f := range o.Usage {
		s.used.WithLabelValues(f.Table).Set(float64(f.Used))
		s.free.WithLabelValues(f.Table).Set(float64(f.Size - f.Used))
	}
}

// Datapath collects the counters of the programs from the maps.
type Datapath struct {
	maps        *bpfmap.Maps
	connections *prometheus.Desc
	refused     *prometheus.Desc
	reasons     *prometheus.Desc
}

// NewDatapath returns a collector over the maps.
func NewDatapath(maps *bpfmap.Maps) *Datapath {
	labels := []string{"namespace", "service", "port", "protocol", "ip_family"}
	return &Datapath{
		maps: maps,
		connections: prometheus.NewDesc("beeline_service_connections_total",
			"Connections and UDP peers for which a backend of the Service port was chosen.", labels, nil),
		refused: prometheus.NewDesc("beeline_service_refused_total",
			"Connections to the Service port that were refused or dropped.", labels, nil),
		reasons: prometheus.NewDesc("beeline_datapath_events_total",
			"Connections that were refused or not served in full, by reason.", []string{"reason", "refused"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (d *Datapath) Describe(ch chan<- *prometheus.Desc) {
	ch <- d.connections
	ch <- d.refused
	ch <- d.reasons
}

// Collect implements [prometheus.Collector].
func (d *Datapath) Collect(ch chan<- prometheus.Metric) {
	reasons, err := d.maps.Reasons()
	if err != nil {
		klog.ErrorS(err, "Counters of the datapath could not be read")
	}
	for _, r := range reasons {
		refused := "false"
		if r.Refused {
			refused = "true"
		}
		ch <- prometheus.MustNewConstMetric(d.reasons, prometheus.CounterValue, float64(r.Count), r.Name, refused)
	}
	names := d.maps.ServiceNames()
	end := uint32(0)
	for id := range names {
		end = max(end, id+1)
	}
	stats, err := d.maps.ServiceStats(end)
	if err != nil {
		klog.ErrorS(err, "Counters of Services could not be read")
		return
	}
	for id, name := range names {
		values := []string{
			name.Port.Service.Namespace, name.Port.Service.Name, name.Port.Port,
			name.Port.Protocol.String(), name.Family.String(),
		}
		ch <- prometheus.MustNewConstMetric(d.connections, prometheus.CounterValue, float64(stats[id].Connections), values...)
		ch <- prometheus.MustNewConstMetric(d.refused, prometheus.CounterValue, float64(stats[id].Refused), values...)
	}
}
