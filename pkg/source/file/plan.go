package file

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// catalog is what is served: objects of different files without a clash.
type catalog struct {
	chosen   map[string]*content // by file name
	declared map[id]declaration
	holders  map[claim]model.Name
	// assigned also keeps what Services of a rejected content have had.
	assigned map[model.Name]assignment
	services map[model.Name]*service
	slices   map[model.Name]*model.Slice
	nodes    map[model.Name]*model.Node
	// cidrs are the Service ranges that are not shared with another proxy; nil: not told.
	cidrs []netip.Prefix
}

// declaration is an object and the file that declares it.
type declaration struct {
	file string
	*object
}

// service is a Service of a catalog.
type service struct {
	object     *object
	assignment assignment
	model      *model.Service // nil is not served
}

// newService returns a Service that a is assigned to.
func newService(o *object, a assignment) *service {
	s := &service{object: o, assignment: a}
	if o.service.served {
		s.model = o.service.with(a)
	}
	return s
}

func newCatalog() *catalog {
	return &catalog{
		chosen:   map[string]*content{},
		declared: map[id]declaration{},
		holders:  map[claim]model.Name{},
		assigned: map[model.Name]assignment{},
		services: map[model.Name]*service{},
		slices:   map[model.Name]*model.Slice{},
		nodes:    map[model.Name]*model.Node{},
	}
}

// candidate is a file with the contents it may have, the preferred one first.
type candidate struct {
	file    string
	choices []*content
}

// plan returns the catalog that follows prev: of each file the first content
// that clashes with no other, and the faults of those that do.
//
// Who has an address or an object keeps it; among newcomers the file whose name
// sorts first gets it. Candidates are sorted by file. read returns a content's text, which
// tells the places of faults; nil is that it is not known any more.
func (r *rules) plan(prev *catalog, candidates []candidate, read func(file string, c *content) []byte) (*catalog, map[string][]*yamldoc.Fault) {
	faults := map[string][]*yamldoc.Fault{}
	rejected := map[string]int{} // contents of a file that are out
	for {
		b := &builder{rules: r, prev: prev, next: newCatalog(),
			faults: map[string][]*yamldoc.Fault{}, refusals: map[string][]refusal{}}
		for _, c := range candidates {
			if n := rejected[c.file]; n < len(c.choices) {
				b.next.chosen[c.file] = c.choices[n]
				b.files = append(b.files, c.file)
			}
		}
		b.build()
		if len(b.faults) == 0 {
			b.keepUnserved(candidates)
			return b.next, faults
		}
		for name, f := range b.faults {
			rejected[name]++
			if faults[name] == nil {
				c := b.next.chosen[name]
				faults[name] = append(f, places(b.refusals[name], read(name, c))...)
			}
		}
	}
}

// builder makes the next catalog of one choice of contents.
type builder struct {
	rules      *rules
	prev, next *catalog
	files      []string                    // of next.chosen, sorted
	faults     map[string][]*yamldoc.Fault // of files that are out
	refusals   map[string][]refusal        // those of them without a place
}

func (b *builder) build() {
	b.eachFile(b.checkRanges)
	b.declareKept()
	b.eachFile(b.declare)
	b.keepClaims()
	b.eachFile(b.claim)
	b.assign()
	if len(b.faults) == 0 {
		b.convert()
	}
}

// reject puts a file out. The place of fields is not kept with its content, since few files
// have such faults.
func (b *builder) reject(name string, o *object, path, reason string) {
	b.faults[name] = []*yamldoc.Fault{}
	b.refusals[name] = append(b.refusals[name], refusal{o, path, reason})
}

// eachFile calls f for each file that has no fault yet.
func (b *builder) eachFile(f func(name string, c *content)) {
	for _, name := range b.files {
		if b.faults[name] == nil {
			f(name, b.next.chosen[name])
		}
	}
}

// eachService calls f for each Service of files without a fault, by name.
func (b *builder) eachService(f func(p declaration)) {
	var services []declaration
	for _, p := range b.next.declared {
		if p.service != nil {
			services = append(services, p)
		}
	}
	slices.SortFunc(services, func(x, y declaration) int { return x.id.Compare(y.id.Name) })
	for _, p := range services {
		if b.faults[p.file] == nil {
			f(p)
		}
	}
}

// checkRanges rejects a file whose Services need a range that the agent has not.
func (b *builder) checkRanges(name string, c *content) {
	for _, o := range c.services() {
		if o.service.unmet != nil {
			b.faults[name] = append(b.faults[name], o.service.unmet)
		}
	}
}

// declareKept gives objects that stay in their file to that file.
func (b *builder) declareKept() {
	b.eachFile(func(name string, c *content) {
		for _, o := range c.objects {
			if b.prev.declared[o.id].file == name {
				b.next.declared[o.id] = declaration{name, o}
			}
		}
	})
}

// declare gives a file the rest of its objects, or none when another file has
// one of them.
func (b *builder) declare(name string, c *content) {
	for _, o := range c.objects {
		p, taken := b.next.declared[o.id]
		if taken && p.file != name {
			b.reject(name, o, "metadata.name", fmt.Sprintf("%s is already in %s: keep one of them", o.id, p.file))
		} else {
			b.next.declared[o.id] = declaration{name, o}
		}
	}
	if b.faults[name] == nil {
		return
	}
	for _, o := range c.objects {
		if b.next.declared[o.id].file == name {
			delete(b.next.declared, o.id)
		}
	}
}

// keepClaims gives each Service what it holds already and still wants, and then
// what was assigned to it when it was last served, unless that is taken by now.
func (b *builder) keepClaims() {
	b.eachService(func(p declaration) {
		a := b.prev.assigned[p.id.Name].wanted(p.service)
		b.next.assigned[p.id.Name] = a
		for _, c := range p.service.claims(a) {
			if b.prev.holders[c.claim] == p.id.Name {
				b.take(c.claim, p.id.Name)
			}
		}
	})
	b.eachService(func(p declaration) {
		a := b.next.assigned[p.id.Name]
		a.ClusterIPs = slices.DeleteFunc(a.ClusterIPs, func(ip netip.Addr) bool {
			return !b.take(claim{addr: ip}, p.id.Name)
		})
		for port := range p.service.portsToAssign() {
			n := a.NodePorts[portKey(port)]
			if n != 0 && !b.take(claim{port: n, proto: port.Protocol}, p.id.Name) {
				delete(a.NodePorts, portKey(port))
			}
		}
		b.next.assigned[p.id.Name] = a
	})
}

// take gives c to a Service and reports whether it has it.
func (b *builder) take(c claim, name model.Name) bool {
	holder, taken := b.next.holders[c]
	if !taken {
		b.next.holders[c] = name
	}
	return !taken || holder == name
}

// claim gives a file's Services all they ask for, or nothing when another
// Service has some of it.
func (b *builder) claim(name string, c *content) {
	for _, o := range c.services() {
		var faulty place // an address stands for the frontends at it
		for _, want := range o.service.claims(b.next.assigned[o.id.Name]) {
			if want.at != faulty && !b.take(want.claim, o.id.Name) {
				faulty = want.at
				b.reject(name, o, want.at.String(), b.clash(o, want.claim))
			}
		}
	}
	if b.faults[name] == nil {
		return
	}
	for _, o := range c.services() {
		for _, want := range o.service.claims(b.next.assigned[o.id.Name]) {
			if b.next.holders[want.claim] == o.id.Name {
				delete(b.next.holders, want.claim)
			}
		}
	}
}

func (b *builder) clash(o *object, c claim) string {
	holder := id{kindService, b.next.holders[c]}
	return fmt.Sprintf("%s cannot have %s: %s of %s has it", o.id, c, holder, b.next.declared[holder].file)
}

// assign gives each Service the addresses and node ports that it still lacks.
func (b *builder) assign() {
	b.eachService(func(p declaration) {
		a := b.next.assigned[p.id.Name]
		if err := b.assignAddrs(p.object, &a); err != nil {
			b.reject(p.file, p.object, "spec", err.Error())
			return
		}
		if err := b.assignPorts(p.object, &a); err != nil {
			b.reject(p.file, p.object, "spec.ports", err.Error())
			return
		}
		b.next.assigned[p.id.Name] = a
		for _, c := range p.service.claims(a) {
			b.take(c.claim, p.id.Name)
		}
	})
}

func (b *builder) assignAddrs(o *object, a *assignment) error {
	var addrs []netip.Addr
	for _, f := range o.service.unaddressed() {
		if i := slices.IndexFunc(a.ClusterIPs, func(ip netip.Addr) bool { return model.FamilyOf(ip) == f }); i >= 0 {
			addrs = append(addrs, a.ClusterIPs[i])
			continue
		}
		r := b.rules.rangeOf(f)
		n, ok := r.pick(o.id.Name.String(), func(n uint64) bool { return b.freeAddr(o, r.at(n)) })
		if !ok {
			return fmt.Errorf("%s: no address of %s %s is free: delete a Service or give a larger range", o.id, rangeField, r.prefix)
		}
		addrs = append(addrs, r.at(n))
	}
	a.ClusterIPs = addrs
	return nil
}

// freeAddr reports whether addr is nobody's cluster IP and has the Service's
// ports free.
func (b *builder) freeAddr(o *object, addr netip.Addr) bool {
	if _, taken := b.next.holders[claim{addr: addr}]; taken {
		return false
	}
	for _, p := range o.service.model.Ports {
		if _, taken := b.next.holders[claim{addr, p.Port, p.Protocol}]; taken {
			return false
		}
	}
	return true
}

func (b *builder) assignPorts(o *object, a *assignment) error {
	for port := range o.service.portsToAssign() {
		if a.NodePorts[portKey(port)] != 0 {
			continue
		}
		key := fmt.Sprintf("%s:%d", o.id.Name, port.Port) // TCP and UDP get the same number when they can
		n, ok := b.rules.nodePorts.band().pick(key, func(n uint64) bool {
			return b.take(claim{port: uint16(n), proto: port.Protocol}, o.id.Name)
		})
		if !ok {
			return fmt.Errorf("%s: no node port of %s is free: delete a Service or choose one by hand", o.id, b.rules.nodePorts)
		}
		a.setNodePort(port, uint16(n))
	}
	return nil
}

// convert fills in the model. A Service of which nothing changed keeps its value.
func (b *builder) convert() {
	for i, p := range b.next.declared {
		if p.service == nil {
			if p.slice != nil {
				b.next.slices[i.Name] = p.slice
			}
			if p.node != nil {
				b.next.nodes[i.Name] = p.node
			}
			continue
		}
		a := b.next.assigned[i.Name]
		if old := b.prev.services[i.Name]; old != nil && old.object == p.object && old.assignment.equal(a) {
			b.next.services[i.Name] = old
			continue
		}
		b.next.services[i.Name] = newService(p.object, a)
	}
	foreign := make(map[model.Name][]netip.Addr)
	for name, s := range b.next.services {
		if s.object.service.foreign {
			foreign[name] = s.object.service.with(s.assignment).ClusterIPs
		}
	}
	b.next.cidrs = convert.OwnCIDRs(b.rules.cidrs, foreign)
}

// keepUnserved keeps what Services have that are declared only in contents that
// were rejected, so that they have it again once the fault is mended.
func (b *builder) keepUnserved(candidates []candidate) {
	for _, cand := range candidates {
		for _, c := range cand.choices {
			if c == b.next.chosen[cand.file] {
				break // what follows is out of date
			}
			for _, o := range c.services() {
				if a, ok := b.prev.assigned[o.id.Name]; ok && b.next.services[o.id.Name] == nil {
					b.next.assigned[o.id.Name] = a
				}
			}
		}
	}
}

// diff returns the update that makes next of c.
func (c *catalog) diff(next *catalog) source.Update {
	var u source.Update
	u.PutServices, u.DeleteServices = changes(c.models(), next.models())
	u.PutSlices, u.DeleteSlices = changes(c.slices, next.slices)
	var gone []model.Name
	u.PutNodes, gone = changes(c.nodes, next.nodes)
	for _, name := range gone {
		u.DeleteNodes = append(u.DeleteNodes, name.Name)
	}
	if !slices.Equal(next.cidrs, c.cidrs) {
		u.ServiceCIDRs = next.cidrs
	}
	return u
}

// models returns the Services that are served.
func (c *catalog) models() map[model.Name]*model.Service {
	models := make(map[model.Name]*model.Service, len(c.services))
	for name, s := range c.services {
		if s.model != nil {
			models[name] = s.model
		}
	}
	return models
}

// changes returns what to put and what to delete, each by name, to get from old
// to now.
func changes[T any](old, now map[model.Name]*T) (puts []*T, deletes []model.Name) {
	for _, name := range slices.SortedFunc(maps.Keys(now), model.Name.Compare) {
		if was := old[name]; was != now[name] && !reflect.DeepEqual(was, now[name]) {
			puts = append(puts, now[name])
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(old), model.Name.Compare) {
		if now[name] == nil {
			deletes = append(deletes, name)
		}
	}
	return puts, deletes
}
