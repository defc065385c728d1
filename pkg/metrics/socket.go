package metrics

import "github.com/prometheus/client_golang/prometheus"

// Sockets counts the sockets that the agent has ended. Make one with [NewSockets].
type Sockets struct{ ended prometheus.Counter }

// NewSockets registers the metric.
func NewSockets(reg prometheus.Registerer) *Sockets {
	s := &Sockets{ended: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "beeline_udp_sockets_ended_total",
		Help: "Connected UDP sockets that were ended because their endpoint was gone.",
	})}
	reg.MustRegister(s.ended)
	return s
}

// Observe takes how many a search has ended.
func (s *Sockets) Observe(ended int) { s.ended.Add(float64(ended)) }
