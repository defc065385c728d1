package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Health counts the answers about the agent's health. Make one with [NewHealth].
type Health struct {
	answers map[string]*prometheus.CounterVec
}

// NewHealth registers the counters of the pages healthz and livez.
func NewHealth(reg prometheus.Registerer) *Health {
	h := &Health{answers: make(map[string]*prometheus.CounterVec)}
	for _, page := range []string{"healthz", "livez"} {
		h.answers[page] = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_proxy_" + page + "_total",
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
