package flowmap

import (
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// untrackedFor is how long the programs take it that nothing is tracked.
const untrackedFor = 3 * time.Second

// SetTracking stores for the programs whether netfilter tracks connections in the node's
// network namespace. They take it that there are some unless told otherwise within the
// last two seconds. It may be called beside all other methods.
func (t Table) SetTracking(some bool) error {
	until := uint32(0)
	if !some {
		now, err := bpf.Clock()
		if err != nil {
			return err
		}
		until = uint32((now + untrackedFor) / time.Second)
	}
	atomic.StoreUint32(&t.maps.Entries.Tracking.NoneUntil, until)
	return nil
}
