package flowmap

import (
	"math/bits"
	"net/netip"
	"sync/atomic"

	"github.com/beeline-lb/beeline/pkg/model"
)

// SourceCount counts the established flows of the networks of clients during a walk over the
// flow table.
type SourceCount struct {
	seed          uint64
	before, found []uint32
}

// StartSourceCount begins to count.
func (t Table) StartSourceCount() *SourceCount {
	e := t.maps.Entries.SourceShare
	c := &SourceCount{e.Seed, make([]uint32, len(e.Count)), make([]uint32, len(e.Count))}
	for i := range e.Count {
		c.before[i] = atomic.LoadUint32(&e.Count[i])
	}
	return c
}

// Add counts a flow of the table if the programs do.
func (c *SourceCount) Add(f *Flow) {
	if f.State.HalfOpen() || f.Overflow || f.Protocol == model.TCP && f.Tunnel != LeavesByTunnel {
		return
	}
	c.found[sourceSharePlace(f.Client.Addr(), c.seed, len(c.found))]++
}

// EndSourceCount corrects the programs' counts by what was found, and the share of a network. Changes since the
// start stay counted. Maps that are opened for reading are left as they are.
func (t Table) EndSourceCount(c *SourceCount) {
	if t.maps.ReadOnly() {
		return
	}
	t.maps.Entries.SetSourceShare(t.maps.MaxFlows())
	e := t.maps.Entries.SourceShare
	for i, found := range c.found {
		if found != c.before[i] {
			atomic.AddUint32(&e.Count[i], found-c.before[i])
		}
	}
}

// sourceSharePlace is bl_source_share_place of the programs; places is a power of 2.
func sourceSharePlace(client netip.Addr, seed uint64, places int) int {
	var network uint64
	if client.Is4() || client.Is4In6() {
		b := client.As4()
		network = 1<<48 | uint64(b[0])<<16 | uint64(b[1])<<8 | uint64(b[2])
	} else {
		for _, b := range client.AsSlice()[:6] {
			network = network<<8 | uint64(b)
		}
	}
	const mix = 0x9e3779b97f4a7c15
	network = (network ^ seed) * mix
	network = (network ^ network>>32) * mix
	return int(network >> (64 - bits.TrailingZeros(uint(places))))
}
