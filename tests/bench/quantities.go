package main

import (
	"fmt"

	"github.com/beeline-lb/beeline/pkg/model"
)

// quantity is something that is measured.
type quantity struct {
	key   string
	title string
	unit  string
	bound bound
	bar   float64
}

// socketQuantities are measured for each family.
var socketQuantities = []quantity{
	{"connect/plain", "UDP connect(), no program", "ns", none, 0},
	{"connect/empty", "the same, on top: an empty program", "ns", none, 0},
	{"connect/none", "no Service, on top of the empty program", "ns", atMost, 40},
	{"connect/service", "ClusterIP, on top of the empty program", "ns", atMost, 100},
	{"connect/affinity", "session affinity, on top of the ClusterIP", "ns", atMost, 60},
	{"fresh/plain", "UDP socket+connect+close, no program", "ns", none, 0},
	{"fresh/none", "new socket, no Service, on top of the empty program", "ns", none, 0},
	{"fresh/service", "new socket, ClusterIP, on top of the empty program", "ns", atMost, 650},
	{"tcp/rate/plain", "TCP connect+close, no program", "1/s", none, 0},
	{"tcp/rate", "the same through a ClusterIP", "of that", atLeast, 0.95},
	{"tcp/bulk/plain", "bytes over one connection, no program", "GB/s", none, 0},
	{"tcp/bulk", "the same through a ClusterIP", "of that", likely, 1},
}

// quantities lists what is measured, in the order in which it is shown.
func quantities() []quantity {
	var list []quantity
	for _, family := range model.Families {
		for _, q := range socketQuantities {
			q.key = of(q.key, family)
			q.title = fmt.Sprintf("%s: %s", family, q.title)
			list = append(list, q)
		}
	}
	return append(list, quantity{"memory/maps", "kernel memory of all maps, no Service", "MiB", atMost, 32})
}
