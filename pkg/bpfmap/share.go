package bpfmap

import (
	"math/rand/v2"
	"runtime"

	"github.com/prometheus/procfs/sysfs"
)

// The shares of half-open flows, as parts of what the flow table holds.
const (
	halfOpenPart = 4 // of the flow table itself
	overflowPart = 8 // the size of the table for those that begin beyond that
)

// LeastLRU returns the least size of a table that is a part of another. Before Linux 6.16,
// an LRU map that is full evicts 128 entries at once, and each CPU keeps as many for itself:
// when they have them all, what a CPU inserts is evicted by what it inserts next.
func LeastLRU() uint32 { return max(1024, 2*keptFree()) }

// keptFree returns how many free entries of an LRU map all CPUs may keep for themselves.
func keptFree() uint32 { return 128 * uint32(CPUs()) }

// CPUs returns how many CPUs the machine has, whichever of them this process may use.
func CPUs() int {
	var cpus []sysfs.CPU
	machine, err := sysfs.NewDefaultFS()
	if err == nil {
		cpus, err = machine.CPUs()
	}
	if err != nil || len(cpus) == 0 {
		return runtime.NumCPU()
	}
	return len(cpus)
}

// newClientPart is the size of the table of clients without an established flow, as a
// part of that of the others.
const newClientPart = 4

// MaxHalfOpen returns how many half-open flows the flow table may hold.
func (m *Maps) MaxHalfOpen() uint32 { return max(1, uint32(m.MaxFlows())/halfOpenPart) }

// MaxFlows returns how many flows there is room for, besides those that are half-open in
// the overflow table.
func (m *Maps) MaxFlows() int { return int(m.BlFlow.MaxEntries() / 2) }

// sourceShare is how many of the flows that the flow table holds one network of clients may
// have established by UDP or SCTP, or by TCP in the tunnel, as a part of all.
const sourceShare = 4

// SetSourceShare sets the share of a network for the programs, where there is room for so many flows. Any seed will
// do, but for none.
func (entries *Entries) SetSourceShare(maxFlows int) {
	e := entries.SourceShare
	if e.Seed == 0 {
		e.Seed = rand.Uint64() | 1
	}
	e.Most = max(1, uint32(maxFlows)/sourceShare)
}
