// Package registry tells tests which metrics the agent has.
package registry

import (
	"regexp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/pkg/source"
)

// Metric is what is registered.
type Metric struct {
	Kind   string // counter, gauge or histogram; "" where the collector does not show it
	Labels string // separated by commas
}

// Noted is a registry of the descriptions, by name: /metrics has those with labels only once
// they have a value.
type Noted map[string]Metric

// Agent returns the metrics of the agent.
func Agent() Noted {
	n := Noted{}
	metrics.NewClient(n)
	metrics.NewConfig(n)
	metrics.NewFaults(n)
	metrics.NewFlows(n, 1)
	metrics.NewHealth(n)
	metrics.NewSockets(n)
	metrics.NewSync(n)
	metrics.NewOutliers(n)
	metrics.NewVerify(n, nil)
	metrics.RegisterSpillOver(n, nil, nil)
	n.MustRegister(metrics.NewDatapath(nil), metrics.NewDevices(nil), metrics.NewTermination(nil, 0), metrics.NewServices(nil, 0, nil, metrics.NewBackends(nil, 0)),
		metrics.NewQueue(func() source.Queue { return source.Queue{} }))
	return n
}

// A description has no accessors; this is its text.
var text = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// Register implements [prometheus.Registerer]. It panics at a description of another form.
func (n Noted) Register(c prometheus.Collector) error {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		c.Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		m := text.FindStringSubmatch(d.String())
		if m == nil {
			panic("the description " + d.String() + " is of another form")
		}
		n[m[1]] = Metric{kindOf(c), m[2]}
	}
	return nil
}

// MustRegister implements [prometheus.Registerer].
func (n Noted) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = n.Register(c) // returns no error
	}
}

// Unregister implements [prometheus.Registerer].
func (n Noted) Unregister(prometheus.Collector) bool { return false }

func kindOf(c prometheus.Collector) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec, prometheus.Gauge: // a counter has no Set
		return "gauge"
	case *prometheus.HistogramVec:
		return "histogram"
	case prometheus.Counter:
		return "counter"
	}
	return ""
}
