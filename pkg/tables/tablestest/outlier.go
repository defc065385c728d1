package tablestest

import (
	"maps"
	"time"

	"github.com/beeline-lb/beeline/pkg/tables"
)

// Fail has connections to a backend fail that is in use, as programs count it; 0: one is answered.
func (m *Store) Fail(backend string, failures uint32) {
	m.change(backend, func(o *tables.Outlier) {
		o.Failures = failures
		if failures == 0 {
			o.Trial = tables.NoTrial
		}
	})
}

// Try has a connection sent to a backend on trial, as programs do, and reports whether it was.
func (m *Store) Try(backend string) (tried bool) {
	m.change(backend, func(o *tables.Outlier) {
		if o.Trial == tables.TrialOffered {
			o.Trial, tried = tables.TrialTaken, true
		}
	})
	return tried
}

// change changes what is known of a backend that is in use.
func (m *Store) change(backend string, by func(*tables.Outlier)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, b := range m.Backends {
		if b.State == 0 || b.AddrPort.String() != backend || !m.Services[b.Service].Outliers {
			continue
		}
		o := m.outlier(id, b.Generation)
		by(&o)
		m.outliers[id] = outlier{b.Generation, o}
	}
}

// Outliers returns what is known of the backends in use.
func (m *Store) Outliers() map[string]tables.Outlier {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := make(map[string]tables.Outlier)
	for id, b := range maps.All(m.Backends) {
		if o := m.outlier(id, b.Generation); b.State != 0 && o != (tables.Outlier{}) {
			known[b.AddrPort.String()] = o
		}
	}
	return known
}

// outlier is what is known of a backend, and of which generation.
type outlier struct {
	generation uint32
	tables.Outlier
}

func (m *Store) outlier(id, generation uint32) tables.Outlier {
	if o := m.outliers[id]; o.generation == generation {
		return o.Outlier
	}
	return tables.Outlier{}
}

// Outlier returns what is known of a backend.
func (m *Store) Outlier(id, generation uint32) tables.Outlier {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.outlier(id, generation)
}

// PutOutlier replaces it.
func (m *Store) PutOutlier(id, generation uint32, o tables.Outlier) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outliers[id] = outlier{generation, o}
	return nil
}

// Now returns the time since some time.
func (m *Store) Now() (time.Duration, error) { return time.Duration(time.Now().UnixNano()), nil }
