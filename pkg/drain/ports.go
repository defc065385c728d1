package drain

import (
	"errors"
	"iter"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/flowmap"
)

// Source ports are reserved for twice as long as it takes until they are again.
const (
	reserveInterval = time.Minute
	reserveFor      = 2 * reserveInterval
)

// ports keeps the source ports of open flows from the other proxy's SNAT: a connection that got one
// of them, to the same backend, would have its replies translated as those of the flow.
type ports struct {
	maps *bpfmap.Maps
	next time.Time // when renew reserves them
}

// renew reserves them when it is time, at first at once.
func (p *ports) renew() {
	if now := time.Now(); !now.Before(p.next) {
		p.next = now.Add(reserveInterval)
		p.reserve()
	}
}

// reserve reserves them. What cannot be reserved stops nothing.
func (p *ports) reserve() {
	var failed error
	n, err := conntrack.ThisHost.Reserve(open(p.maps, &failed), reserveFor)
	if err = errors.Join(err, failed); errors.Is(err, conntrack.ErrNotLoaded) {
		return
	}
	if err != nil {
		klog.ErrorS(err, "Source ports of open connections could not be reserved, the other proxy may choose one of them", "reserved", n)
	}
}

// open yields the flows with SNAT that are not over. The error is that of reading them.
func open(maps *bpfmap.Maps, failed *error) iter.Seq[conntrack.Connection] {
	return func(yield func(conntrack.Connection) bool) {
		for batch, err := range flowmap.New(maps).Batches(bpf.Clock) {
			if err != nil {
				*failed = err
				return
			}
			for i := range batch.Flows {
				f := &batch.Flows[i]
				if !f.SNAT || !f.Source.Addr().IsValid() || f.State >= flowmap.StateClosed {
					continue
				}
				if !yield(conntrack.Connection{Protocol: f.Protocol, Source: f.Source, Destination: f.Backend}) {
					return
				}
			}
		}
	}
}
