package servicemap

import (
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// The bits of an entry's failures that are those of a trial.
const (
	trialOffered = uint32(bpf.SockBlOutlierTrialBL_TRIAL_OFFERED)
	trialTaken   = uint32(bpf.SockBlOutlierTrialBL_TRIAL_TAKEN)
)

// Outlier returns what outlier detection knows of a backend; the zero value where it knows nothing.
func (t Table) Outlier(id, generation uint32) tables.Outlier {
	e := t.maps.Outlier.At(id)
	if e == nil || atomic.LoadUint32(&e.Generation) != generation {
		return tables.Outlier{}
	}
	failures := atomic.LoadUint32(&e.Failures)
	return tables.Outlier{
		Failures: failures &^ (trialOffered | trialTaken),
		Trial:    trialOf(failures),
		Until:    time.Duration(atomic.LoadUint32(&e.Until)) * time.Second,
		Times:    atomic.LoadUint32(&e.Times),
	}
}

// trialOf returns what an entry's failures say of a trial.
func trialOf(failures uint32) tables.Trial {
	switch {
	case failures&trialOffered != 0:
		return tables.TrialOffered
	case failures&trialTaken != 0:
		return tables.TrialTaken
	}
	return tables.NoTrial
}

// PutOutlier replaces it, word by word. What a program counts meanwhile may be lost.
func (s *Store) PutOutlier(id, generation uint32, o tables.Outlier) error {
	e, err := s.maps.Outlier.Grow(id)
	if err != nil {
		return err
	}
	failures := o.Failures
	switch o.Trial {
	case tables.TrialOffered:
		failures |= trialOffered
	case tables.TrialTaken:
		failures |= trialTaken
	}
	atomic.StoreUint32(&e.Failures, failures)
	atomic.StoreUint32(&e.Until, uint32(o.Until/time.Second))
	atomic.StoreUint32(&e.Times, o.Times)
	atomic.StoreUint32(&e.Generation, generation)
	return nil
}

// Now returns the time of [tables.Outlier.Until].
func (t Table) Now() (time.Duration, error) { return bpf.Clock() }
