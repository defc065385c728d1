package bpfmap

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// The shares of half-open flows, as parts of what the flow table holds.
const (
	halfOpenPart = 4 // of the flow table itself
	overflowPart = 8 // the size of the table for those that begin beyond that
)

// partLeast returns the least size of a table that is a part of another. Before Linux 6.16,
// an LRU map that is full evicts 128 entries at once, and each CPU keeps as many for itself:
// when they have them all, what a CPU inserts is evicted by what it inserts next.
func partLeast() uint32 { return max(1024, 2*128*uint32(runtime.NumCPU())) }

// newClientPart is the size of the table of clients without an established flow, as a
// part of that of the others.
const newClientPart = 4

// maxHalfOpen returns how many half-open flows the flow table may hold.
func (m *Maps) maxHalfOpen() uint32 { return max(1, uint32(m.MaxFlows())/halfOpenPart) }

// HalfOpen is what the programs know of half-open flows.
type HalfOpen struct {
	// Count is how many are in the flow table. The programs miss some changes; so does
	// whoever counts them there while packets come.
	Count int64
	// Overflow is the second, by [Clock], in which the overflow table was last added to;
	// 0 is never.
	Overflow uint32
}

// HalfOpen reads what the programs know.
func (m *Maps) HalfOpen() HalfOpen {
	e := m.Entries.HalfOpen
	return HalfOpen{atomic.LoadInt64(&e.Count), atomic.LoadUint32(&e.Overflow)}
}

// CountHalfOpen corrects the programs' count: so many were found in the table where they
// had known of before.Count. Changes since before was read stay counted. Maps that are
// opened for reading are left as they are.
func (m *Maps) CountHalfOpen(before HalfOpen, found int) {
	if m.readOnly {
		return
	}
	atomic.AddInt64(&m.Entries.HalfOpen.Count, int64(found)-before.Count)
}

// overflowRest is how long the overflow table was not added to when packets need not look
// there: a program that has noted the second may be about to.
const overflowRest = 5 * time.Second

// ForgetOverflow lets packets pass by the overflow table, which was found empty in a
// reading that began at start, after before was read, until it is added to again. Maps
// that are opened for reading are left as they are.
func (m *Maps) ForgetOverflow(before HalfOpen, start time.Duration) {
	if m.readOnly {
		return
	}
	if time.Duration(before.Overflow)*time.Second+overflowRest < start {
		atomic.CompareAndSwapUint32(&m.Entries.HalfOpen.Overflow, before.Overflow, 0)
	}
}

// FlowTurnover is how many entries of the flow table have been added by the programs, and
// removed by them and by the agent, ever. The kernel does not say which it has evicted.
type FlowTurnover struct {
	Added, Removed, RemovedByAgent uint64
}

// FlowTurnover reads the counters.
func (m *Maps) FlowTurnover() (t FlowTurnover, err error) {
	if t.Added, err = m.counter(bpf.SockBlReasonBL_REASON_FLOW_ENTRY_ADDED); err != nil {
		return t, err
	}
	t.Removed, err = m.counter(bpf.SockBlReasonBL_REASON_FLOW_ENTRY_REMOVED)
	t.RemovedByAgent = atomic.LoadUint64(&m.Entries.HalfOpen.Removed)
	return t, err
}
