package policy

import (
	"encoding/binary"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// fewPorts is up to how many comparisons of a Service port with a slice port cost less than a
// map of them.
const fewPorts = 1024

// MostLooked is how many endpoints of all ports of a Service and family are looked at, where that does not
// follow from how many of them it may have: an endpoint is listed once, and is one at each port.
const MostLooked = 1 << 20

// Where it follows, so many times as many as it may have are looked at, and leastLooked at least.
const (
	lookedForEach = 8
	leastLooked   = 1 << 16
)

// target is a slice port that belongs to a Service port.
type target struct {
	slice *model.Slice
	place int32 // of the slice
	port  uint16
}

type portID struct {
	name     string
	protocol model.Protocol
}

// Joined are the ports of a Service with the slice ports that belong to each, of one family.
type Joined struct {
	svc    *model.Service
	family model.Family
	list   []*model.Slice
	// byPort is nil where there are few ports.
	byPort map[portID][]target

	chosen map[string]choice // by the shape of the targets
	looked int               // of those that may be, see [Joined.mostLooked]
}

// Join finds the slice ports of each port of a Service. list is as for [Select].
func Join(svc *model.Service, family model.Family, list []*model.Slice) Joined {
	j := Joined{svc: svc, family: family, list: list}
	comparisons := 0
	for _, s := range list {
		comparisons += len(s.Ports) * len(svc.Ports)
	}
	if comparisons <= fewPorts {
		return j
	}
	j.byPort = make(map[portID][]target, len(svc.Ports))
	for _, p := range svc.Ports {
		j.byPort[portID{p.Name, p.Protocol}] = nil
	}
	for i, s := range list {
		if s.Family != family {
			continue
		}
		for _, p := range s.Ports {
			id := portID{p.Name, p.Protocol}
			if of, ok := j.byPort[id]; ok {
				j.byPort[id] = append(of, target{s, int32(i), p.Port})
			}
		}
	}
	return j
}

// targets returns those of port number i of the Service, in the order of the slices. They last until
// the scratch is used again.
func (j *Joined) targets(s *scratch, i int) []target {
	port := &j.svc.Ports[i]
	if j.byPort != nil {
		return j.byPort[portID{port.Name, port.Protocol}]
	}
	return s.targetsOf(*port, j.family, j.list)
}

// targetsOf returns the slice ports that belong to a Service port, in the order of the slices. They
// last until the scratch is used again.
func (s *scratch) targetsOf(port model.ServicePort, family model.Family, list []*model.Slice) []target {
	s.targets = s.targets[:0]
	for i, slice := range list {
		if slice.Family != family {
			continue
		}
		for _, p := range slice.Ports {
			if p.Name == port.Name && p.Protocol == port.Protocol {
				s.targets = append(s.targets, target{slice, int32(i), p.Port})
			}
		}
	}
	return s.targets
}

// Listed returns how many endpoints slices list for port number i of the Service, on any node.
func (j *Joined) Listed(i int) int {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	return listed(j.targets(s, i))
}

func listed(targets []target) (n int) {
	for _, t := range targets {
		n += len(t.slice.Endpoints)
	}
	return n
}

// Select returns the sets of port number i of the Service, as [Select], with so many backends at
// most, see [keep].
//
// What it costs does not grow with the endpoints of all ports: they are looked at once for ports whose
// target ports differ alone, and when that is still too much for what the ports may have, only the first
// that slices list.
func (j *Joined) Select(i int, node *model.LocalNode, most uint64, localUsed bool) Sets {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	targets := j.targets(s, i)
	if uint64(listed(targets)) <= most {
		return s.all(j.svc, targets, node)
	}
	ports := portsOf(targets)
	shape := shapeOf(targets, ports, localUsed)
	c, known := j.chosen[shape]
	if !known {
		c = j.choose(s, targets, ports, node, most, localUsed)
		if j.chosen == nil {
			j.chosen = make(map[string]choice)
		}
		j.chosen[shape] = c
	}
	return c.sets(s, j.svc, ports)
}

// choice is what ports of one shape may have. The target port of an endpoint is its place among
// those of the Service port.
type choice struct {
	endpoints      []endpoint
	cluster, local Kind
}

// choose looks at the endpoints of the targets, whose ports these are.
func (j *Joined) choose(s *scratch, targets []target, ports []uint16, node *model.LocalNode, most uint64, localUsed bool) choice {
	limit := listed(targets)
	if j.looked > 0 && j.looked+limit > j.mostLooked(most) {
		limit = int(min(most, uint64(limit)))
	} else {
		j.looked += limit
	}
	eps := s.sets(j.svc, targets, node, limit)
	var c choice
	c.cluster, c.local = kinds(eps)
	c.endpoints = slices.Clone(keep(eps, most, localUsed))
	for i := range c.endpoints {
		place, _ := slices.BinarySearch(ports, c.endpoints[i].port)
		c.endpoints[i].port = uint16(place)
	}
	return c
}

// mostLooked returns how many endpoints of all ports are looked at where each may have so many of them.
func (j *Joined) mostLooked(most uint64) int {
	return int(min(max(lookedForEach*most*uint64(len(j.svc.Ports)), leastLooked), MostLooked))
}

// sets returns the sets of a Service port with these target ports.
func (c *choice) sets(s *scratch, svc *model.Service, ports []uint16) Sets {
	s.ordered = append(s.ordered[:0], c.endpoints...)
	for i := range s.ordered {
		s.ordered[i].port = ports[s.ordered[i].port]
	}
	eject(s.ordered, svc)
	return Sets{Cluster: c.cluster, Local: c.local, Backends: backends(s.ordered)}
}

// portsOf returns the target ports in order, each once.
func portsOf(targets []target) []uint16 {
	ports := make([]uint16, 0, len(targets))
	for _, t := range targets {
		ports = append(ports, t.port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// shapeOf returns the same for targets that differ only in their ports, and not in which of them are
// equal or less than others.
func shapeOf(targets []target, ports []uint16, localUsed bool) string {
	shape := make([]byte, 0, 1+6*len(targets))
	if localUsed {
		shape = append(shape, 1)
	}
	for _, t := range targets {
		place, _ := slices.BinarySearch(ports, t.port)
		shape = binary.LittleEndian.AppendUint32(shape, uint32(t.place))
		shape = binary.LittleEndian.AppendUint16(shape, uint16(place))
	}
	return string(shape)
}

// keep leaves so many endpoints: first those of the local set if it is used, then those that get new
// connections, those that would, and those of no set, in their order.
func keep(eps []endpoint, most uint64, localUsed bool) []endpoint {
	rank := func(e *endpoint) int {
		switch {
		case !e.inSet():
			return 3
		case e.weight == 0:
			return 2
		case localUsed && e.inLocal:
			return 0
		}
		return 1
	}
	var kept [4]uint64
	for i := range eps {
		if InUse(eps[i].from) {
			kept[rank(&eps[i])]++
		}
	}
	for i := range kept {
		kept[i] = min(kept[i], most)
		most -= kept[i]
	}
	return slices.DeleteFunc(eps, func(e endpoint) bool {
		n := &kept[rank(&e)]
		if !InUse(e.from) || *n == 0 {
			return true
		}
		*n--
		return false
	})
}
