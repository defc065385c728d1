package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Health counts the answers about the agent's health. Make one with [NewHealth].
type Health struct {
	answers map[string]*prometheus.CounterVec
}

// NewHealth registers the counters of the pages healthz, livez and startupz.
func NewHealth(reg prometheus.Registerer) *Health {
	h := &Health{answers: make(map[string]*prometheus.CounterVec)}
	for page, name := range map[string]string{
		"healthz":  "kubeproxy_proxy_healthz_total",
		"livez":    "kubeproxy_proxy_livez_total",
		"startupz": "beeline_startupz_total",
	} {
		h.answers[page] = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name,
			Help: "Answers of /" + page + " by HTTP status.",
		}, []string{"code"})
		reg.MustRegister(h.answers[page])
	}
	return h
}

// Answered counts an answer.
func (h *Health) Answered(page string, code int) {
	h.answers[page].WithLabelValues(strconv.Itoa(code)).Inc()
}
