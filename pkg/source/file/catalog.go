package file

import (
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

// catalog is what is served: objects of different files without a clash. One that was made
// from another by [catalog.next] shares its entries, so the other must not be used any more.
type catalog struct {
	parent *catalog // what the tables have noted changes of; nil is none

	chosen   table[string, *content] // by file name
	declared table[id, declaration]
	holders  table[claim, model.Name]
	// assigned also keeps what Services of a rejected content have had.
	assigned table[model.Name, assignment]
	services table[model.Name, *service]
	slices   table[model.Name, *model.Slice]
	nodes    table[model.Name, *model.Node]
	// foreign are the cluster IPs of the Services that are left to another proxy.
	foreign table[model.Name, []netip.Addr]
	// whole says that each file has the content it prefers, and no Service has anything else.
	whole bool
	// cidrs are the Service ranges; nil: not told. foreignIPs are the addresses in them that
	// another proxy serves.
	cidrs      []netip.Prefix
	foreignIPs []netip.Addr
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
		chosen:   newTable[string, *content](),
		declared: newTable[id, declaration](),
		holders:  newTable[claim, model.Name](),
		assigned: newTable[model.Name, assignment](),
		services: newTable[model.Name, *service](),
		slices:   newTable[model.Name, *model.Slice](),
		nodes:    newTable[model.Name, *model.Node](),
		foreign:  newTable[model.Name, []netip.Addr](),
	}
}

// firstCatalog returns one without files, in which Services have what they had.
func firstCatalog(cidrs []netip.Prefix, assigned map[model.Name]assignment) *catalog {
	c := newCatalog()
	c.cidrs, c.assigned.now = cidrs, maps.Clone(assigned)
	return c
}

// forget drops what the tables have noted.
func (c *catalog) forget() {
	c.parent = nil
	c.chosen.changed = nil
	c.declared.changed = nil
	c.holders.changed = nil
	c.assigned.changed = nil
	c.services.changed = nil
	c.slices.changed = nil
	c.nodes.changed = nil
	c.foreign.changed = nil
}

// next returns a catalog that begins as c and notes its changes.
func (c *catalog) next() *catalog {
	c.forget()
	return &catalog{
		parent:   c,
		chosen:   c.chosen.track(),
		declared: c.declared.track(),
		holders:  c.holders.track(),
		assigned: c.assigned.track(),
		services: c.services.track(),
		slices:   c.slices.track(),
		nodes:    c.nodes.track(),
		foreign:  c.foreign.track(),
		whole:    c.whole,
		cidrs:    c.cidrs, foreignIPs: c.foreignIPs,
	}
}

// revert makes the catalog that c began as usable again.
func (c *catalog) revert() {
	c.chosen.revert()
	c.declared.revert()
	c.holders.revert()
	c.assigned.revert()
	c.services.revert()
	c.slices.revert()
	c.nodes.revert()
	c.foreign.revert()
}

// withdraw takes all that a file declares out of the catalog.
func (c *catalog) withdraw(name string) {
	old, ok := c.chosen.now[name]
	if !ok {
		return
	}
	c.chosen.remove(name)
	for _, o := range old.objects {
		c.declared.remove(o.id)
		switch {
		case o.service != nil:
			for _, held := range o.service.claims(c.assigned.now[o.id.Name]) {
				c.holders.remove(held.claim)
			}
			c.assigned.remove(o.id.Name)
			c.services.remove(o.id.Name)
			c.foreign.remove(o.id.Name)
		case o.slice != nil:
			c.slices.remove(o.id.Name)
		case o.node != nil:
			c.nodes.remove(o.id.Name)
		}
	}
}

// diff returns the update that makes next of c.
func (c *catalog) diff(next *catalog) source.Update {
	var u source.Update
	u.PutServices, u.DeleteServices = changes(models(next.services.since(c.services, next.parent == c)))
	u.PutSlices, u.DeleteSlices = changes(next.slices.since(c.slices, next.parent == c))
	var gone []model.Name
	u.PutNodes, gone = changes(next.nodes.since(c.nodes, next.parent == c))
	for _, name := range gone {
		u.DeleteNodes = append(u.DeleteNodes, name.Name)
	}
	if !slices.Equal(next.cidrs, c.cidrs) || !slices.Equal(next.foreignIPs, c.foreignIPs) {
		u.ServiceCIDRs, u.ForeignIPs = next.cidrs, next.foreignIPs
	}
	return u
}

// models returns what is served of Services.
func models(pairs iter.Seq2[model.Name, [2]*service]) iter.Seq2[model.Name, [2]*model.Service] {
	return func(yield func(model.Name, [2]*model.Service) bool) {
		for name, pair := range pairs {
			var served [2]*model.Service
			for i, s := range pair {
				if s != nil {
					served[i] = s.model
				}
			}
			if !yield(name, served) {
				return
			}
		}
	}
}

// changes returns what to put and what to delete, each by name, of pairs of an old and a new
// value; nil is none.
func changes[T any](pairs iter.Seq2[model.Name, [2]*T]) (puts []*T, deletes []model.Name) {
	put := map[model.Name]*T{}
	for name, pair := range pairs {
		switch old, now := pair[0], pair[1]; {
		case now == nil && old != nil:
			deletes = append(deletes, name)
		case now != nil && old != now && (old == nil || !reflect.DeepEqual(old, now)):
			put[name] = now
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(put), model.Name.Compare) {
		puts = append(puts, put[name])
	}
	slices.SortFunc(deletes, model.Name.Compare)
	return puts, deletes
}
