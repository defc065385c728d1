package flowmap

import (
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// noneFor is how long the programs take it that there are no tracked connections, or no rules.
const noneFor = 3 * time.Second

// SetTracking stores for the programs whether netfilter tracks connections in the node's
// network namespace. They take it that there are some unless told otherwise within the
// last two seconds. It may be called beside all other methods.
func (t Table) SetTracking(some bool) error {
	return setNone(&t.maps.Entries.Tracking.NoneUntil, some)
}

// SetRulesByClient stores likewise whether rules of routing look at who sends: they take it that
// there are some unless told otherwise within the last two seconds.
func (t Table) SetRulesByClient(some bool) error {
	return setNone(&t.maps.Entries.Tracking.NoRulesUntil, some)
}

func setNone(word *uint32, some bool) error {
	until := uint32(0)
	if !some {
		now, err := bpf.Clock()
		if err != nil {
			return err
		}
		until = uint32((now + noneFor) / time.Second)
	}
	atomic.StoreUint32(word, until)
	return nil
}
