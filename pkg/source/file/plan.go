package file

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/pkg/yamldoc"
)

// candidate is a file with the contents it may have, the preferred one first.
type candidate struct {
	file    string
	choices []*content
}

// plan returns the catalog that follows prev: of each file the first content
// that clashes with no other, and the faults of those that do.
//
// The owner of an address or an object keeps it; among newcomers the file whose name
// sorts first gets it. Candidates are sorted by file. read returns a content's text, which
// tells the places of faults; nil is that it is not known any more. prev may be used up.
func (r *rules) plan(prev *catalog, candidates []candidate, read func(file string, c *content) []byte) (*catalog, map[string][]*yamldoc.Fault) {
	if prev.whole {
		if next := r.change(prev, candidates); next != nil {
			return next, nil
		}
	}
	faults := map[string][]*yamldoc.Fault{}
	rejected := map[string]int{} // contents of a file that are out
	for {
		b := newBuilder(r, prev, newCatalog())
		for _, c := range candidates {
			if n := rejected[c.file]; n < len(c.choices) {
				b.add(c.file, c.choices[n])
			}
		}
		b.build()
		if len(b.faults) == 0 {
			b.next.whole = len(rejected) == 0
			b.keepUnserved(candidates)
			return b.next, faults
		}
		for name, f := range b.faults {
			rejected[name]++
			if faults[name] == nil {
				c := b.next.chosen.now[name]
				faults[name] = append(f, places(b.refusals[name], read(name, c))...)
			}
		}
	}
}

// change returns prev with the files changed whose preferred content is another one now; nil,
// with prev as it was, when one of them has a fault. What the others have stays theirs, so it
// is what the whole would come to.
func (r *rules) change(prev *catalog, candidates []candidate) *catalog {
	next := prev.next()
	b := newBuilder(r, next, next)
	there := make(map[string]bool, len(candidates))
	for _, c := range candidates {
		if len(c.choices) == 0 {
			continue
		}
		there[c.file] = true
		if next.chosen.now[c.file] != c.choices[0] {
			next.withdraw(c.file)
			b.add(c.file, c.choices[0])
		}
	}
	for name := range prev.chosen.now {
		if !there[name] {
			next.withdraw(name)
		}
	}
	b.build()
	if len(b.faults) > 0 {
		next.revert()
		return nil
	}
	return next
}

// builder adds files to the next catalog.
type builder struct {
	rules      *rules
	prev, next *catalog                    // the same when next began as prev
	files      []string                    // to add, sorted
	services   []declaration               // of files, by name
	faults     map[string][]*yamldoc.Fault // of files that are out
	refusals   map[string][]refusal        // those of them without a place
}

func newBuilder(r *rules, prev, next *catalog) *builder {
	return &builder{rules: r, prev: prev, next: next,
		faults: map[string][]*yamldoc.Fault{}, refusals: map[string][]refusal{}}
}

// add makes a file one of those to add.
func (b *builder) add(name string, c *content) {
	b.next.chosen.put(name, c)
	b.files = append(b.files, name)
}

func (b *builder) build() {
	b.eachFile(b.checkRanges)
	b.declareKept()
	b.eachFile(b.declare)
	b.collectServices()
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
			f(name, b.next.chosen.now[name])
		}
	}
}

// collectServices lists the Services of files without a fault.
func (b *builder) collectServices() {
	b.eachFile(func(name string, c *content) {
		for _, o := range c.services() {
			b.services = append(b.services, declaration{name, o})
		}
	})
	slices.SortFunc(b.services, func(x, y declaration) int { return x.id.Compare(y.id.Name) })
}

// eachService calls f for each Service of files without a fault, by name.
func (b *builder) eachService(f func(p declaration)) {
	for _, p := range b.services {
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
			if was, _ := b.prev.declared.was(o.id); was.file == name {
				b.next.declared.put(o.id, declaration{name, o})
			}
		}
	})
}

// declare gives a file the rest of its objects, or none when another file has
// one of them.
func (b *builder) declare(name string, c *content) {
	for _, o := range c.objects {
		p, taken := b.next.declared.now[o.id]
		if taken && p.file != name {
			b.reject(name, o, "metadata.name", fmt.Sprintf("%s is already in %s: keep one of them", o.id, p.file))
		} else {
			b.next.declared.put(o.id, declaration{name, o})
		}
	}
	if b.faults[name] == nil {
		return
	}
	for _, o := range c.objects {
		if b.next.declared.now[o.id].file == name {
			b.next.declared.remove(o.id)
		}
	}
}

// keepClaims gives each Service what it holds already and still wants, and then
// what was assigned to it when it was last served, unless that is taken by now.
func (b *builder) keepClaims() {
	b.eachService(func(p declaration) {
		was, _ := b.prev.assigned.was(p.id.Name)
		a := was.wanted(p.service)
		b.next.assigned.put(p.id.Name, a)
		for _, c := range p.service.claims(a) {
			if holder, held := b.prev.holders.was(c.claim); held && holder == p.id.Name {
				b.take(c.claim, p.id.Name)
			}
		}
	})
	b.eachService(func(p declaration) {
		a := b.next.assigned.now[p.id.Name]
		a.ClusterIPs = slices.DeleteFunc(a.ClusterIPs, func(ip netip.Addr) bool {
			return !b.take(claim{addr: ip}, p.id.Name)
		})
		for port := range p.service.portsToAssign() {
			n := a.NodePorts[portKey(port)]
			if n != 0 && !b.take(claim{port: n, proto: port.Protocol}, p.id.Name) {
				delete(a.NodePorts, portKey(port))
			}
		}
		if n := a.HealthCheckNodePort; n != 0 && !b.take(claim{port: n, proto: model.TCP}, p.id.Name) {
			a.HealthCheckNodePort = 0
		}
		b.next.assigned.put(p.id.Name, a)
	})
}

// take gives c to a Service and reports whether it has it.
func (b *builder) take(c claim, name model.Name) bool {
	holder, taken := b.next.holders.now[c]
	if !taken {
		b.next.holders.put(c, name)
	}
	return !taken || holder == name
}

// claim gives a file's Services all they ask for, or nothing when another
// Service has some of it.
func (b *builder) claim(name string, c *content) {
	for _, o := range c.services() {
		var faulty place // an address stands for the frontends at it
		for _, want := range o.service.claims(b.next.assigned.now[o.id.Name]) {
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
		for _, want := range o.service.claims(b.next.assigned.now[o.id.Name]) {
			if b.next.holders.now[want.claim] == o.id.Name {
				b.next.holders.remove(want.claim)
			}
		}
	}
}

func (b *builder) clash(o *object, c claim) string {
	holder := id{kindService, b.next.holders.now[c]}
	return fmt.Sprintf("%s cannot have %s: %s of %s has it", o.id, c, holder, b.next.declared.now[holder].file)
}

// assign gives each Service the addresses and node ports that it still lacks.
func (b *builder) assign() {
	b.eachService(func(p declaration) {
		a := b.next.assigned.now[p.id.Name]
		if err := b.assignAddrs(p.object, &a); err != nil {
			b.reject(p.file, p.object, "spec", err.Error())
			return
		}
		if err := b.assignPorts(p.object, &a); err != nil {
			b.reject(p.file, p.object, "spec.ports", err.Error())
			return
		}
		b.next.assigned.put(p.id.Name, a)
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

// freeAddr reports whether addr is no Service's cluster IP and has the Service's
// ports free.
func (b *builder) freeAddr(o *object, addr netip.Addr) bool {
	if _, taken := b.next.holders.now[claim{addr: addr}]; taken {
		return false
	}
	for _, p := range o.service.model.Ports {
		if _, taken := b.next.holders.now[claim{addr, p.Port, p.Protocol}]; taken {
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
		n, err := b.freePort(o, key, port.Protocol)
		if err != nil {
			return err
		}
		a.setNodePort(port, n)
	}
	if !o.service.healthCheck || a.HealthCheckNodePort != 0 {
		return nil
	}
	n, err := b.freePort(o, o.id.Name.String()+":health", model.TCP)
	a.HealthCheckNodePort = n
	return err
}

// freePort gives a Service a node port that nothing has, the Service's own ports neither.
func (b *builder) freePort(o *object, key string, protocol model.Protocol) (uint16, error) {
	n, ok := b.rules.nodePorts.band().pick(key, func(n uint64) bool {
		_, taken := b.next.holders.now[claim{port: uint16(n), proto: protocol}]
		return !taken
	})
	if !ok {
		return 0, fmt.Errorf("%s: no node port of %s is free: delete a Service or choose one by hand", o.id, b.rules.nodePorts)
	}
	b.take(claim{port: uint16(n), proto: protocol}, o.id.Name)
	return uint16(n), nil
}

// convert fills in the model. A Service of which nothing changed keeps its value.
func (b *builder) convert() {
	b.eachFile(func(name string, c *content) {
		for _, o := range c.objects {
			switch {
			case o.service != nil:
				b.serve(o)
			case o.slice != nil:
				b.next.slices.put(o.id.Name, o.slice)
			case o.node != nil:
				b.next.nodes.put(o.id.Name, o.node)
			}
		}
	})
	b.next.cidrs = convert.SortedCIDRs(b.rules.cidrs)
	b.next.foreignIPs = convert.ForeignIPs(b.next.foreign.now)
}

// serve makes a Service part of the catalog.
func (b *builder) serve(o *object) {
	a := b.next.assigned.now[o.id.Name]
	s, _ := b.prev.services.was(o.id.Name)
	if s == nil || s.object != o || !s.assignment.equal(a) {
		s = newService(o, a)
	}
	b.next.services.put(o.id.Name, s)
	if o.service.foreign {
		b.next.foreign.put(o.id.Name, o.service.with(a).ClusterIPs)
	}
}

// keepUnserved keeps what Services have that are declared only in contents that
// were rejected, so that they have it again once the fault is mended.
func (b *builder) keepUnserved(candidates []candidate) {
	for _, cand := range candidates {
		for _, c := range cand.choices {
			if c == b.next.chosen.now[cand.file] {
				break // what follows is out of date
			}
			for _, o := range c.services() {
				if a, ok := b.prev.assigned.was(o.id.Name); ok && b.next.services.now[o.id.Name] == nil {
					b.next.assigned.put(o.id.Name, a)
				}
			}
		}
	}
}
