package servicemap

import (
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// trialBits are what the failures of an entry have of a trial.
var trialBits = [...]uint32{
	tables.TrialOffered: uint32(bpf.SockBlOutlierTrialBL_TRIAL_OFFERED),
	tables.TrialTaken:   uint32(bpf.SockBlOutlierTrialBL_TRIAL_TAKEN),
}

// Outlier returns what outlier detection knows of a backend; the zero value where it knows nothing.
func (t Table) Outlier(id, generation uint32) tables.Outlier {
	e := t.maps.Outlier.At(id)
	if e == nil || atomic.LoadUint32(&e.Generation) != generation {
		return tables.Outlier{}
	}
	failures, trial := splitFailures(atomic.LoadUint32(&e.Failures))
	return tables.Outlier{
		Failures: failures,
		Trial:    trial,
		Until:    time.Duration(atomic.LoadUint32(&e.Until)) * time.Second,
		Times:    atomic.LoadUint32(&e.Times),
	}
}

// splitFailures returns what the failures of an entry say.
func splitFailures(word uint32) (failures uint32, trial tables.Trial) {
	for t, bits := range trialBits {
		if word&bits != 0 {
			return word &^ bits, tables.Trial(t)
		}
	}
	return word, tables.NoTrial
}

// PutOutlier replaces it, word by word. What a program counts meanwhile may be lost.
func (s *Store) PutOutlier(id, generation uint32, o tables.Outlier) error {
	e, err := s.maps.Outlier.Grow(id)
	if err != nil {
		return err
	}
	atomic.StoreUint32(&e.Failures, o.Failures|trialBits[o.Trial])
	atomic.StoreUint32(&e.Until, uint32(o.Until/time.Second))
	atomic.StoreUint32(&e.Times, o.Times)
	atomic.StoreUint32(&e.Generation, generation)
	return nil
}

// Now returns the time of [tables.Outlier.Until].
func (t Table) Now() (time.Duration, error) { return bpf.Clock() }
