package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/config"
)

// Config exports the number of unknown fields of the configuration. Make one with [NewConfig].
type Config struct{ unknown prometheus.Gauge }

// NewConfig registers the metric.
func NewConfig(reg prometheus.Registerer) *Config {
	c := &Config{unknown: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "beeline_config_unknown_fields",
		Help: "Fields of KubeProxyConfiguration that this version does not know; they have no effect.",
	})}
	reg.MustRegister(c.unknown)
	return c
}

// Observe takes the configuration.
func (c *Config) Observe(of *config.Config) {
	count, _ := of.Unknown()
	c.unknown.Set(float64(count))
}
