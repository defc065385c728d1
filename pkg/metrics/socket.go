package metrics

import "github.com/prometheus/client_golang/prometheus"

// Sockets counts the sockets that the agent has destroyed. Make one with [NewSockets].
type Sockets struct{ destroyed prometheus.Counter }

// NewSockets registers the metric.
func NewSockets(reg prometheus.Registerer) *Sockets {
	s := &Sockets{destroyed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "beeline_udp_sockets_destroyed_total",
		Help: "Connected UDP sockets that were destroyed because their endpoint was gone, or their address another Service's.",
	})}
	reg.MustRegister(s.destroyed)
	return s
}

// Observe adds the sockets that a search has destroyed.
func (s *Sockets) Observe(destroyed int) { s.destroyed.Add(float64(destroyed)) }
