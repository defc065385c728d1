package web

import (
	"math"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
)

// points is how many readings the charts go back: five minutes of readings two seconds apart.
const points = 150

// point is a reading of the whole node.
type point struct {
	Time time.Time `json:"time"`
	// Seconds before Time are what the rates are of.
	Seconds     float64 `json:"seconds"`
	Connections float32 `json:"connectionsPerSecond"`
	Refused     float32 `json:"refusedPerSecond"`
	Flows       int     `json:"flows"`
}

// history is what the last readings had.
type history struct {
	readings int // how many there have been
	node     []point
	services map[model.Name]*series // those with connections, or refused ones, in these readings
}

// series is what a Service had, by the number of the reading modulo points.
type series struct {
	busy                 int // the last reading with any
	connections, refused [points]float32
}

// add adds a reading. The first one has no rates and is left out.
func (h *history) add(top *inspect.Top) {
	if h.services == nil {
		h.services = make(map[model.Name]*series)
	}
	if top.Seconds <= 0 {
		return
	}
	if len(h.node) == points {
		h.node = h.node[:copy(h.node, h.node[1:])]
	}
	sum := top.Sum()
	h.node = append(h.node, point{top.Time, top.Seconds, tenths(sum.ConnectionsPerSecond), tenths(sum.RefusedPerSecond), sum.Flows})
	at := h.readings % points
	for name, s := range h.services {
		s.connections[at], s.refused[at] = 0, 0
		if h.readings-s.busy >= points {
			delete(h.services, name)
		}
	}
	for i := range top.Services {
		h.addService(&top.Services[i], at)
	}
	h.readings++
}

func (h *history) addService(service *inspect.TopService, at int) {
	if service.ConnectionsPerSecond == 0 && service.RefusedPerSecond == 0 {
		return
	}
	s := h.services[service.FullName()]
	if s == nil {
		s = new(series)
		h.services[service.FullName()] = s
	}
	s.busy = h.readings
	s.connections[at], s.refused[at] = tenths(service.ConnectionsPerSecond), tenths(service.RefusedPerSecond)
}

// of returns what a Service had in each reading of the node, oldest first; nil: nothing.
func (h *history) of(name model.Name) (connections, refused []float32) {
	s := h.services[name]
	if s == nil {
		return nil, nil
	}
	for i := h.readings - len(h.node); i < h.readings; i++ {
		connections = append(connections, s.connections[i%points])
		refused = append(refused, s.refused[i%points])
	}
	return connections, refused
}

// tenths rounds a rate to what a chart can show.
func tenths(rate float64) float32 { return float32(math.Round(10*rate) / 10) }
