package verify

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// differences says in words what a sync would write.
type differences struct {
	*recorder
	list []Finding
}

func (d *differences) add(service model.Name, kind, format string, args ...any) {
	f := Finding{Part: Tables, Kind: kind, What: fmt.Sprintf(format, args...), service: service}
	if service != (model.Name{}) {
		f.Service = service.String()
	}
	d.list = append(d.list, f)
}

// failed notes a Service that cannot be applied in full, whoever tries.
func (d *differences) failed(service model.Name, reason string) {
	d.add(service, "service-unapplied", "%s is not served in full: %s", service, reason)
}

// all returns the differences.
func (d *differences) all() []Finding {
	d.ports()
	d.endpoints()
	d.frontendEntries()
	d.rangeEntries()
	d.nodeEntries()
	return d.list
}

// nameOf returns what a Service id stands for once everything is written.
func (d *differences) nameOf(id uint32) (tables.ServiceName, bool) {
	if name := d.names[id]; name != nil {
		return *name, true
	}
	name, ok := d.have.Names[id]
	return name, ok
}

// port names a Service port: "default/web:http/TCP (IPv4)".
func port(n tables.ServiceName) string {
	text := n.Port.Service.String()
	if n.Port.Port != "" {
		text += ":" + n.Port.Port
	}
	return fmt.Sprintf("%s/%s (%s)", text, n.Port.Protocol, n.Family)
}

// label names the Service port of an id, and returns its Service.
func (d *differences) label(id uint32) (model.Name, string) {
	name, ok := d.nameOf(id)
	if !ok {
		return model.Name{}, fmt.Sprintf("service id %d, which is no Service's", id)
	}
	return name.Port.Service, port(name)
}

// ports compares Service ports and their sets.
func (d *differences) ports() {
	for id, name := range d.names {
		have, known := d.have.Names[id]
		switch {
		case name == nil && known:
			d.add(have.Port.Service, "service-surplus", "service id %d stands for %s, which is not to be served", id, port(have))
		case name != nil && !known:
			d.add(name.Port.Service, "service-missing", "%s has no entry", port(*name))
		case name != nil && have != *name:
			d.add(name.Port.Service, "service-name", "service id %d is described as %+v, want %+v", id, have, *name)
		}
	}
	for id, want := range d.services {
		have, service := d.have.Services[id], want
		name, label := d.label(id)
		if _, known := d.have.Names[id]; !known || name == (model.Name{}) {
			continue // told by its name
		}
		if have.AffinitySeconds != service.AffinitySeconds || have.Algorithm != service.Algorithm || have.Tunnels != service.Tunnels || have.Outliers != service.Outliers {
			d.add(name, "service-settings", "%s has session affinity %d s, algorithm %s, tunnel %t, outlier detection %t; want %d s, %s, %t, %t", label,
				have.AffinitySeconds, have.Algorithm, have.Tunnels, have.Outliers, service.AffinitySeconds, service.Algorithm, service.Tunnels, service.Outliers)
		}
		if have.Trial != service.Trial {
			d.add(name, "service-trial", "%s tries %s, want %s", label, d.trial(have), d.trial(service))
		}
		d.set(name, label, "cluster", have.Cluster, service.Cluster)
		d.set(name, label, "local", have.Local, service.Local)
	}
}

// trial names the backend that a Service port has on trial.
func (d *differences) trial(s tables.Service) string {
	if s.Trial == 0 {
		return "no endpoint"
	}
	b, known := d.backend(s.Trial - 1)
	if !known {
		return fmt.Sprintf("backend id %d, which is no endpoint", s.Trial-1)
	}
	return "endpoint " + b.AddrPort.String()
}

// backend returns the backend of an id: as it is to be, else as it is.
func (d *differences) backend(id uint32) (b tables.Backend, known bool) {
	if b, known = d.backends[id]; !known || b.State == 0 {
		b, known = d.have.Backends[id]
	}
	return b, known
}

// set compares a set of a Service port.
func (d *differences) set(service model.Name, label, which string, have, want tables.Set) {
	_, rewritten := d.slots[want.First]
	if have == want && (want.Kind != policy.Backends || !rewritten) {
		return
	}
	if have.Kind != want.Kind {
		d.add(service, "set-kind", "the %s set of %s %s, want that it %s", which, label, does(have.Kind), does(want.Kind))
		return
	}
	got, unknown := d.shares(d.have.Slots(have))
	wanted, _ := d.shares(d.slots[want.First])
	var missing, surplus []string
	for addr := range wanted {
		if got[addr] == 0 {
			missing = append(missing, addr.String())
		}
	}
	for addr := range got {
		if wanted[addr] == 0 {
			surplus = append(surplus, addr.String())
		}
	}
	slices.Sort(missing)
	slices.Sort(surplus)
	var parts []string
	if len(missing) > 0 {
		parts = append(parts, "lacks "+strings.Join(missing, ", "))
	}
	if len(surplus) > 0 {
		parts = append(parts, "has "+strings.Join(surplus, ", ")+" that do not belong there")
	}
	if unknown > 0 {
		parts = append(parts, fmt.Sprintf("has %d slots that lead to no endpoint", unknown))
	}
	if len(parts) == 0 && !maps.Equal(got, wanted) {
		parts = append(parts, "gives its endpoints other shares than they should have")
	}
	if len(parts) == 0 {
		parts = append(parts, "has its endpoints in other slots than they should have")
	}
	d.add(service, "set-slots", "the %s set of %s %s", which, label, strings.Join(parts, "; "))
}

// does says what a set of a kind does.
func does(kind policy.Kind) string {
	switch kind {
	case policy.Backends:
		return "has endpoints"
	case policy.Drop:
		return "drops"
	case policy.Reject:
		return "refuses"
	}
	return fmt.Sprintf("is of an unknown kind (%d)", kind)
}

// shares returns how many slots each endpoint has, and how many lead to none.
func (d *differences) shares(slots []uint32) (shares map[netip.AddrPort]int, unknown int) {
	shares = make(map[netip.AddrPort]int)
	for _, id := range slots {
		if b, known := d.backend(id); known {
			shares[b.AddrPort]++
		} else {
			unknown++
		}
	}
	return shares, unknown
}

// endpoints compares backends.
func (d *differences) endpoints() {
	for id, want := range d.backends {
		have, known := d.have.Backends[id]
		service, label := d.label(want.Service)
		switch {
		case !known && want.State != 0:
			d.add(service, "backend-missing", "endpoint %s of %s is missing", want.AddrPort, label)
		case known && want.State == 0:
			service, label = d.label(have.Service)
			d.add(service, "backend-surplus", "backend %d, %s of %s, is no endpoint that it should have", id, have.AddrPort, label)
		case known && have != want:
			d.add(service, "backend-changed", "endpoint %s of %s has %s; want %s", want.AddrPort, label, conditions(have), conditions(want))
		}
	}
}

// conditions says in which state a backend is.
func conditions(b tables.Backend) string {
	var words []string
	for _, bit := range []struct {
		state tables.BackendState
		word  string
	}{
		{tables.InCluster, "cluster"}, {tables.InLocal, "local"}, {tables.Ready, "ready"}, {tables.Serving, "serving"},
		{tables.Terminating, "terminating"}, {tables.OnNode, "on this node"}, {tables.NoNew, "weight 0"},
	} {
		if b.State&bit.state != 0 {
			words = append(words, bit.word)
		}
	}
	return fmt.Sprintf("weight %d, node id %d, generation %d, state %s", b.Weight, b.Node, b.Generation, strings.Join(words, "+"))
}

// frontendEntries compares frontends.
func (d *differences) frontendEntries() {
	for key, want := range d.frontends {
		have, known := d.have.Frontends[key]
		switch {
		case want == nil && known:
			service, label := d.label(have.Service)
			d.add(service, "frontend-surplus", "frontend %s leads to %s, and no Service has that address and port", key, label)
		case want != nil && !known:
			service, label := d.label(want.Service)
			d.add(service, "frontend-missing", "frontend %s (%s) of %s is missing", key, want.Kind, label)
		case want != nil && have != *want:
			service, label := d.label(want.Service)
			_, other := d.label(have.Service)
			if have.Service != want.Service {
				d.add(service, "frontend-changed", "frontend %s leads to %s, want %s", key, other, label)
			} else {
				d.add(service, "frontend-changed", "frontend %s of %s is a %s with flags %#x, want a %s with flags %#x",
					key, label, have.Kind, uint8(have.Flags), want.Kind, uint8(want.Flags))
			}
		}
	}
}

// rangeEntries compares source ranges and Service CIDRs.
func (d *differences) rangeEntries() {
	for r, want := range d.ranges {
		service, label := d.label(r.Service)
		if has := slices.Contains(d.have.SourceRanges, r); want && !has {
			d.add(service, "range-missing", "source range %s of %s is missing", r.Prefix, label)
		} else if !want && has {
			d.add(service, "range-surplus", "source range %s is let in to %s, which does not ask for it", r.Prefix, label)
		}
	}
	for p, want := range d.cidrs {
		if has := slices.Contains(d.have.ServiceCIDRs, p); want && !has {
			d.add(model.Name{}, "cidr-missing", "service range %s is missing", p)
		} else if !want && has {
			d.add(model.Name{}, "cidr-surplus", "service range %s is none of the cluster", p)
		}
	}
	for addr, want := range d.foreign {
		if has := slices.Contains(d.have.Foreign, addr); want && !has {
			d.add(model.Name{}, "foreign-missing", "packets to %s, of a Service of another proxy, do not pass", addr)
		} else if !want && has {
			d.add(model.Name{}, "foreign-surplus", "packets to %s pass, where no other proxy has a Service", addr)
		}
	}
}

// nodeEntries compares addresses of this node, and other nodes.
func (d *differences) nodeEntries() {
	for addr, want := range d.nodeAddrs {
		have, known := d.have.NodeAddrs[addr]
		switch {
		case want == nil && known:
			d.add(model.Name{}, "node-address-surplus", "NodePorts answer at %s, where they should not", addr)
		case want != nil && !known:
			d.add(model.Name{}, "node-address-missing", "NodePorts do not answer at %s", addr)
		case want != nil && have != *want:
			d.add(model.Name{}, "node-address-changed", "NodePorts answer at %s with host only %t, want %t", addr, have.HostOnly, want.HostOnly)
		}
	}
	for id, want := range d.nodes {
		have, known := d.have.Nodes[id]
		switch {
		case want == nil && known:
			d.add(model.Name{}, "node-surplus", "node %s (%s, id %d) is no node of the cluster", have.Name, have.Addr, id)
		case want != nil && !known:
			d.add(model.Name{}, "node-missing", "node %s (%s) is missing", want.Name, want.Addr)
		case want != nil && have != *want:
			d.add(model.Name{}, "node-changed", "node id %d is %s (%s, this one: %t), want %s (%s, %t)",
				id, have.Name, have.Addr, have.Self, want.Name, want.Addr, want.Self)
		}
	}
	for addr, want := range d.nodeIDs {
		have, known := d.have.NodeIDs[addr]
		switch {
		case want == 0 && known:
			d.add(model.Name{}, "node-id-surplus", "tunnel traffic from %s is accepted, which is no address of a node", addr)
		case want != 0 && have != want:
			d.add(model.Name{}, "node-id-missing", "tunnel traffic from %s is taken for that of node id %d, want %d", addr, have, want)
		}
	}
}
