package tables

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// Prepare makes the rings that Apply will need for sets that have changed, several
// at a time. It changes nothing else; Apply makes those that are missing.
func (t *Tables) Prepare(desired []Desired) {
	var jobs []func()
	for i := range desired {
		for j := range desired[i].Ports {
			want := &desired[i].Ports[j]
			sp := t.ports[want.Name.ServicePortName()]
			if sp == nil {
				sp = &servicePort{}
			}
			jobs = sp.prepare(jobs, want.cluster(), sp.cluster, &want.rings[0])
			jobs = sp.prepare(jobs, want.local(), sp.local, &want.rings[1])
		}
	}
	parallel(jobs)
}

// prepare adds a job that makes the ring of a set, if it needs a new one.
func (sp *servicePort) prepare(jobs []func(), want *wantedSet, have content, ring *[]uint32) []func() {
	if want.kind != policy.Backends || want.layout != layoutRing {
		return jobs
	}
	if n := want.count(); len(have.members) == n {
		if c := sp.content(want); len(c.members) == n && c.equal(have) {
			return jobs
		}
	}
	return append(jobs, func() { *ring = want.newRing() })
}

// newRing returns the ring of the backends that have a weight, by their number among
// those.
func (w *wantedSet) newRing() []uint32 {
	list := make([]maglev.Backend, 0, len(w.backends))
	for b := range w.weighing {
		list = append(list, maglev.Backend{AddrPort: b.AddrPort, Weight: uint32(b.Weight)})
	}
	return maglev.Ring(w.size(len(list)), list)
}

// parallel runs the jobs on all processors.
func parallel(jobs []func()) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		workers.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(jobs)) {
					return
				}
				jobs[i]()
			}
		})
	}
	workers.Wait()
}
