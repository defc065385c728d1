package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Verify counts what the agent has found changed by somebody else. Make one with [NewVerify].
type Verify struct {
	findings *prometheus.CounterVec
	last     prometheus.Gauge
}

// NewVerify registers the metrics.
func NewVerify(reg prometheus.Registerer) *Verify {
	v := &Verify{
		findings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "beeline_verify_findings_total",
			Help: "Entries of the tables (part tables) that were not as the agent had written them, and programs or devices (part programs) that somebody had detached; each was mended.",
		}, []string{"part"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_verify_last_timestamp_seconds",
			Help: "When the tables were last compared in full with what the agent had written, seconds since the epoch.",
		}),
	}
	reg.MustRegister(v.findings, v.last)
	for _, part := range []string{"tables", "programs"} {
		v.findings.WithLabelValues(part)
	}
	return v
}

// Tables takes what a comparison of the tables has found.
func (v *Verify) Tables(findings int) {
	v.findings.WithLabelValues("tables").Add(float64(findings))
	v.last.Set(seconds(time.Now()))
}

// Programs takes how many programs were attached again.
func (v *Verify) Programs(findings int) {
	v.findings.WithLabelValues("programs").Add(float64(findings))
}
