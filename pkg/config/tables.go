package config

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The most entries of a table. A hash is made in full at once and may not take 4 GiB
// (Linux 6.1); the others grow by need.
const (
	maxHash  = 1 << 24
	maxArray = 1 << 26
)

// setSizes sets the sizes of the tables.
func (s *Settings) setSizes(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	set := func(name string, to *uint32, entries, most uint32) {
		if entries > most {
			errs = append(errs, field.Invalid(path.Child(name), entries, fmt.Sprintf("must be at most %d", most)))
		}
		*to = entries
	}
	t, sizes := &s.Beeline.Tables, &s.Sizes
	set("maxFrontends", &sizes.Frontends, t.MaxFrontends, maxHash)
	set("maxServices", &sizes.Services, t.MaxServices, maxArray)
	set("maxBackends", &sizes.Backends, t.MaxBackends, maxArray)
	set("maxSlots", &sizes.Slots, t.MaxSlots, maxArray)
	set("maxAffinityEntries", &sizes.Affinity, t.MaxAffinityEntries, maxHash)
	set("maxUDPPeers", &sizes.UDPPeers, t.MaxUDPPeers, maxHash)
	set("maxSourceRanges", &sizes.SourceRanges, t.MaxSourceRanges, maxHash)
	set("maxFlows", &sizes.Flows, t.MaxFlows, maxHash)
	set("maxClients", &sizes.Clients, t.MaxClients, maxHash)
	sizes.CountTraffic = s.Beeline.TrafficSampling > 0
	bounds := &s.Bounds
	bound := func(name string, to *uint32, slots uint32) {
		if slots > sizes.Slots {
			errs = append(errs, field.Invalid(path.Child(name), slots, fmt.Sprintf("must be at most maxSlots, %d", sizes.Slots)))
		}
		*to = slots
	}
	bound("maxSlotsPerService", &bounds.SlotsPerService, t.MaxSlotsPerService)
	bound("maxSlotsPerNamespace", &bounds.SlotsPerNamespace, t.MaxSlotsPerNamespace)
	bound("reservedSlots", &bounds.ReservedSlots, t.ReservedSlots)
	m := readMemory()
	byMemory := m.sizes()
	s.MemoryLimit, s.SizedBy = m.limit, m.String()
	if sizes.Flows != 0 {
		s.SizedBy = "maxFlows"
	} else if sizes.Flows = flowEntries(&s.KubeProxy.Conntrack); sizes.Flows != 0 {
		s.SizedBy = "conntrack.maxPerCore and conntrack.min"
	}
	sizes.Flows = cmp.Or(sizes.Flows, byMemory.Flows)
	sizes.Clients = cmp.Or(sizes.Clients, byMemory.Clients)
	sizes.Affinity = cmp.Or(sizes.Affinity, byMemory.Affinity)
	sizes.UDPPeers = cmp.Or(sizes.UDPPeers, byMemory.UDPPeers)
	return errs
}
