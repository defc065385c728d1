package flowmap

import "github.com/beeline-lb/beeline/pkg/bpfmap"

// drop counts a flow that is removed no more among the active connections of its backend.
func (t Table) drop(f *Flow) {
	if f.Known && f.State.Active() {
		t.addActive(f.BackendID, f.generation, -1)
	}
}

// ActiveCount counts the flows that are active connections of a backend, during a walk over the
// flow tables, for the backends at which they are counted.
type ActiveCount struct {
	maps     *bpfmap.Maps
	backends map[uint32]*activeBackend // by id
}

// activeBackend is what is known of a backend.
type activeBackend struct {
	generation uint32
	before     uint32 // its count at the start
	begun      uint32 // at the start
	found      uint32 // in the tables
	removed    uint32 // of these, by the walk
}

// StartActiveCount begins to count.
func (t Table) StartActiveCount() *ActiveCount {
	c := &ActiveCount{t.maps, make(map[uint32]*activeBackend)}
	t.eachCounted(func(id, generation uint32) {
		// In this order: what begins meanwhile widens the bounds of [Table.EndActiveCount].
		begun := t.activeBegun(id)
		_, flows := t.Active(id, generation)
		c.backends[id] = &activeBackend{generation: generation, before: flows, begun: begun}
	})
	return c
}

// Add counts a flow that was found, and whether it has been removed by who walks.
func (c *ActiveCount) Add(f *Flow, removed bool) {
	if !f.Known || !f.State.Active() {
		return
	}
	b := c.backends[f.BackendID]
	if b == nil || !sameUser(b.generation, f.generation) {
		return
	}
	b.found++
	if removed {
		b.removed++
	}
}

// EndActiveCount corrects the counts by what was found: the kernel does not report the flows
// that it evicts, and what began before its Service asked for counts has none. Flows that begin
// and end while a walk goes on are found or not, so a walk gives bounds of what the count was at
// its start; a count within them is left as it is. Maps that are opened for reading are, too.
func (t Table) EndActiveCount(c *ActiveCount) {
	if t.maps.ReadOnly() {
		return
	}
	for id, b := range c.backends {
		if e := t.maps.Backend.At(id); e == nil || !sameUser(e.Generation, b.generation) {
			continue
		}
		_, after := t.Active(id, b.generation)
		t.addActive(id, b.generation, b.correction(after, t.activeBegun(id)))
	}
}

// correction returns by how much the count was wrong at the start, at least, when it and the
// number of flows begun are these at the end.
func (b *activeBackend) correction(after, begun uint32) int64 {
	began := int64(begun - b.begun)
	ended := max(0, int64(b.before)+began-int64(after)-int64(b.removed))
	least, most := int64(b.found)-began, int64(b.found)+ended
	return min(max(int64(b.before), least), most) - int64(b.before)
}
