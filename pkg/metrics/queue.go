package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

// Queue collects the metrics of changes that come in.
type Queue struct {
	queue                        func() source.Queue
	last                         *prometheus.Desc
	servicesTotal, slicesTotal   *prometheus.Desc
	servicesQueued, slicesQueued *prometheus.Desc
}

// NewQueue returns a collector over what queue returns.
func NewQueue(queue func() source.Queue) *Queue {
	return &Queue{
		queue: queue,
		last: prometheus.NewDesc("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
			"When the last change came in, seconds since the epoch.", []string{"ip_family"}, nil),
		servicesTotal: prometheus.NewDesc("kubeproxy_sync_proxy_rules_service_changes_total",
			"Changes of Services that came in.", nil, nil),
		slicesTotal: prometheus.NewDesc("kubeproxy_sync_proxy_rules_endpoint_changes_total",
			"Changes of EndpointSlices that came in.", nil, nil),
		servicesQueued: prometheus.NewDesc("kubeproxy_sync_proxy_rules_service_changes_pending",
			"Changes of Services that wait for the next sync.", nil, nil),
		slicesQueued: prometheus.NewDesc("kubeproxy_sync_proxy_rules_endpoint_changes_pending",
			"Changes of EndpointSlices that wait for the next sync.", nil, nil),
	}
}

// Describe implements [prometheus.Collector].
func (q *Queue) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(q, ch) }

// Collect implements [prometheus.Collector].
func (q *Queue) Collect(ch chan<- prometheus.Metric) {
	now := q.queue()
	last := 0.0
	if !now.Last.IsZero() {
		last = seconds(now.Last)
	}
	for _, f := range model.Families {
		ch <- prometheus.MustNewConstMetric(q.last, prometheus.GaugeValue, last, f.String())
	}
	ch <- prometheus.MustNewConstMetric(q.servicesTotal, prometheus.CounterValue, float64(now.ServicesTotal))
	ch <- prometheus.MustNewConstMetric(q.slicesTotal, prometheus.CounterValue, float64(now.SlicesTotal))
	ch <- prometheus.MustNewConstMetric(q.servicesQueued, prometheus.GaugeValue, float64(now.Services))
	ch <- prometheus.MustNewConstMetric(q.slicesQueued, prometheus.GaugeValue, float64(now.Slices))
}
