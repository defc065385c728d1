package flowmap

import (
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// HalfOpen are the programs' counts of half-open flows.
type HalfOpen struct {
	// Count is how many are in the flow table, and in the former one while there is one. The programs
	// miss some changes; so does whoever counts them there while packets come.
	Count int64
	// Overflow is the second, by [bpf.Clock], in which the overflow table was last added to;
	// 0 is never.
	Overflow uint32
}

// HalfOpen reads the programs' counts.
func (t Table) HalfOpen() HalfOpen {
	e := t.maps.Entries.HalfOpen
	return HalfOpen{atomic.LoadInt64(&e.Count), atomic.LoadUint32(&e.Overflow)}
}

// CountHalfOpen corrects the programs' count: so many were found in these tables where they
// had known of before.Count. Changes since before was read stay counted. Maps that are
// opened for reading are left as they are.
func (t Table) CountHalfOpen(before HalfOpen, found int) {
	if t.maps.ReadOnly() {
		return
	}
	atomic.AddInt64(&t.maps.Entries.HalfOpen.Count, int64(found)-before.Count)
}

// overflowRest is how long the overflow table was not added to when packets need not look
// there: a program that has noted the second may be about to.
const overflowRest = 5 * time.Second

// ForgetOverflow lets packets pass by the overflow table, which was found empty in a
// reading that began at start, after before was read, until it is added to again. Maps
// that are opened for reading are left as they are.
func (t Table) ForgetOverflow(before HalfOpen, start time.Duration) {
	if t.maps.ReadOnly() {
		return
	}
	if time.Duration(before.Overflow)*time.Second+overflowRest < start {
		atomic.CompareAndSwapUint32(&t.maps.Entries.HalfOpen.Overflow, before.Overflow, 0)
	}
}

// Turnover is how many entries of the flow table have been added by the programs, and
// removed by them and by the agent, ever. The kernel does not say which it has evicted.
type Turnover struct {
	Added, Removed, RemovedByAgent uint64
}

// Turnover reads the counters.
func (t Table) Turnover() (n Turnover, err error) {
	if n.Added, err = t.maps.Counter(bpf.SockBlReasonBL_REASON_FLOW_ENTRY_ADDED); err != nil {
		return n, err
	}
	n.Removed, err = t.maps.Counter(bpf.SockBlReasonBL_REASON_FLOW_ENTRY_REMOVED)
	n.RemovedByAgent = atomic.LoadUint64(&t.maps.Entries.HalfOpen.Removed)
	return n, err
}
