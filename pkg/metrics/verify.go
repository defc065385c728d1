package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Verify counts what the agent has found changed by somebody else, and tells what is wrong with the machine. Make one
// with [NewVerify].
type Verify struct {
	findings *prometheus.CounterVec
	last     prometheus.Gauge
	machine  *prometheus.GaugeVec
}

// NewVerify registers the metrics; machine are the kinds of findings of the machine.
func NewVerify(reg prometheus.Registerer, machine []string) *Verify {
	v := &Verify{
		findings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "beeline_verify_findings_total",
			Help: "Entries of the tables (part tables) that were not as the agent had written them, and programs or entries of devices (part programs) that somebody had detached or changed; each was mended.",
		}, []string{"part"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "beeline_verify_last_timestamp_seconds",
			Help: "When the tables were last compared in full with what the agent had written, seconds since the epoch.",
		}),
		machine: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "beeline_verify_machine_findings",
			Help: "What is wrong with the machine, by kind as of beeline verify: settings of the kernel, what a kube-proxy has left, the clock, a Node that is missing. The agent does not mend it.",
		}, []string{"kind"}),
	}
	reg.MustRegister(v.findings, v.last, v.machine)
	for _, part := range []string{"tables", "programs"} {
		v.findings.WithLabelValues(part)
	}
	for _, kind := range machine {
		v.machine.WithLabelValues(kind)
	}
	return v
}

// Tables takes what a comparison of the tables has found.
func (v *Verify) Tables(findings int) {
	v.Entries(findings)
	v.last.Set(seconds(time.Now()))
}

// Entries takes how many entries were written again that no comparison of the tables looks at.
func (v *Verify) Entries(findings int) {
	v.findings.WithLabelValues("tables").Add(float64(findings))
}

// Programs takes how many programs were attached again.
func (v *Verify) Programs(findings int) {
	v.findings.WithLabelValues("programs").Add(float64(findings))
}

// Machine takes how many findings of a kind there are now.
func (v *Verify) Machine(kind string, findings int) {
	v.machine.WithLabelValues(kind).Set(float64(findings))
}
