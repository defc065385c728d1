package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
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
			Help:    "How long it took to sync changes into the kernel.",
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

// Observe takes the outcome of a sync that has just ended.
func (s *Sync) Observe(o reconcile.Sync) {
	for _, f := range model.Families {
		family := f.String()
		s.duration.WithLabelValues(family).Observe(o.Duration.Seconds())
		if !o.Stuck {
			s.last.WithLabelValues(family).Set(seconds(o.Start.Add(o.Duration)))
		}
		s.noLocal.WithLabelValues("internal", family).Set(float64(o.NoLocal[f].Internal))
		s.noLocal.WithLabelValues("external", family).Set(float64(o.NoLocal[f].External))
	}
	for _, t := range o.Triggers {
		s.programming.WithLabelValues(t.Family.String()).Observe(o.Start.Add(o.Duration).Sub(t.Time).Seconds())
	}
	s.failed.Set(float64(o.Pending))
	for name := range o.Full {
		s.full.WithLabelValues(name).Inc()
	}
	for _, f := range o.Usage {
		s.used.WithLabelValues(f.Table).Set(float64(f.Used))
		s.free.WithLabelValues(f.Table).Set(float64(f.Size - f.Used))
	}
}

// seconds returns a time as seconds since the epoch.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
