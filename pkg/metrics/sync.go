package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Sync holds the metrics of syncs. Make one with [NewSync].
//
// A sync applies both IP families, so both have the same duration and time.
type Sync struct {
	duration    *prometheus.HistogramVec
	last        *prometheus.GaugeVec
	programming *prometheus.HistogramVec
	noLocal     *prometheus.GaugeVec
	failed      prometheus.Gauge
	full        *prometheus.CounterVec
	used        *prometheus.GaugeVec
	free        *prometheus.GaugeVec
}

// NewSync registers the metrics of syncs.
func NewSync(reg prometheus.Registerer) *Sync {
	family := []string{"ip_family"}
	s := &Sync{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubeproxy_sync_proxy_rules_duration_seconds",
			Help:    "Duration of a sync of changes into the kernel.",
			Buckets: durationBuckets(),
		}, family),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			Help: "When the last successful sync ended, seconds since the epoch.",
		}, family),
		programming: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubeproxy_network_programming_duration_seconds",
			Help:    "Time from the change of a pod or Service until it was in the kernel.",
			Buckets: programmingBuckets(),
		}, family),
		noLocal: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
			Help: "Service ports with a Local traffic policy that have endpoints, but none on this node.",
		}, []string{"traffic_policy", "ip_family"}),
		failed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_sync_services_pending",
			Help: "Services whose last change is not wholly in the kernel and is tried again.",
		}),
		full: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "beeline_table_full_total",
			Help: "Syncs in which a table had no room.",
		}, []string{"map"}),
		used: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "beeline_table_entries",
			Help: "Entries of a table that are in use.",
		}, []string{"map"}),
		free: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "beeline_table_entries_free",
			Help: "Entries that a table can still take.",
		}, []string{"map"}),
	}
	reg.MustRegister(s.duration, s.last, s.programming, s.noLocal, s.failed, s.full, s.used, s.free)
	return s
}

// durationBuckets are those of kube-proxy, 1 ms to 16 s, and finer ones below: most
// syncs take less than its shortest.
func durationBuckets() []float64 { return prometheus.ExponentialBuckets(0.001/16, 2, 19) }

// programmingBuckets are those of kube-proxy: 0.25 s to 5 min.
func programmingBuckets() []float64 {
	buckets := prometheus.LinearBuckets(0.25, 0.25, 2)
	buckets = append(buckets, prometheus.LinearBuckets(1, 1, 59)...)
	buckets = append(buckets, prometheus.LinearBuckets(60, 5, 12)...)
	return append(buckets, prometheus.LinearBuckets(120, 30, 7)...)
}

// Synced takes when a sync ended, how long it took, how many Services are to be tried again,
// and whether something failed that is no Service's own fault.
func (s *Sync) Synced(end time.Time, took time.Duration, pending int, stuck bool) {
	for _, f := range model.Families {
		s.duration.WithLabelValues(f.String()).Observe(took.Seconds())
		if !stuck {
			s.last.WithLabelValues(f.String()).Set(seconds(end))
		}
	}
	s.failed.Set(float64(pending))
}

// NoLocal takes how many Service ports of a family with the policy Local for internal, or
// external, traffic have usable endpoints, but none on this node.
func (s *Sync) NoLocal(family model.Family, internal, external int) {
	s.noLocal.WithLabelValues("internal", family.String()).Set(float64(internal))
	s.noLocal.WithLabelValues("external", family.String()).Set(float64(external))
}

// Programmed takes when the change of a slice was triggered, by the clock of another machine, and when it
// was in the kernel.
func (s *Sync) Programmed(family model.Family, triggered, end time.Time) {
	s.programming.WithLabelValues(family.String()).Observe(max(0, end.Sub(triggered).Seconds()))
}

// Tables takes how full the tables are after a sync, and the names of those that had no room
// in it.
func (s *Sync) Tables(usage []tables.Fill, full map[string]bool) {
	for name := range full {
		s.full.WithLabelValues(name).Inc()
	}
	for _, f := range usage {
		s.used.WithLabelValues(f.Table).Set(float64(f.Used))
		s.free.WithLabelValues(f.Table).Set(float64(f.Size - f.Used))
	}
}

// seconds returns a time as seconds since the epoch.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
