package metrics

import "github.com/prometheus/client_golang/prometheus"

// Outliers exports which endpoints are ejected. Make one with [NewOutliers].
type Outliers struct {
	ejected   prometheus.Gauge
	ejections prometheus.Counter
}

// NewOutliers registers the metrics.
func NewOutliers(reg prometheus.Registerer) *Outliers {
	o := &Outliers{
		ejected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_endpoints_ejected",
			Help: "Endpoints of Service ports that get no new connections because some have failed.",
		}),
		ejections: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "beeline_endpoint_ejections_total",
			Help: "Endpoints of Service ports that were ejected because connections to them had failed.",
		}),
	}
	reg.MustRegister(o.ejected, o.ejections)
	return o
}

// Observe takes how many endpoints are ejected, and how many more have been since the last time.
func (o *Outliers) Observe(now, more int) {
	o.ejected.Set(float64(now))
	o.ejections.Add(float64(more))
}
