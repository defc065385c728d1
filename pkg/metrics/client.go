package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Client counts requests to the API server, by the names, labels and buckets that kube-proxy's have: dashboards
// of kube-proxy show them. client-go calls it, for its hooks RequestLatency and RequestResult. Make one with
// [NewClient].
type Client struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewClient registers the metrics.
func NewClient(reg prometheus.Registerer) *Client {
	c := &Client{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total",
			Help: "Requests to the API server by HTTP status, or <error> without an answer.",
		}, []string{"code", "method", "host"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rest_client_request_duration_seconds",
			Help:    "Time until the API server answered a request.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb", "host"}),
	}
	reg.MustRegister(c.requests, c.duration)
	return c
}

// Increment counts a request.
func (c *Client) Increment(_ context.Context, code, method, host string) {
	c.requests.WithLabelValues(code, method, host).Inc()
}

// Observe takes how long a request took. Of its URL only the host counts: there are few of those.
func (c *Client) Observe(_ context.Context, verb string, at url.URL, took time.Duration) {
	c.duration.WithLabelValues(verb, at.Host).Observe(took.Seconds())
}
