package tablestest

import (
	"iter"
	"maps"
	"slices"

	"github.com/beeline-lb/beeline/pkg/tables"
)

var _ tables.Stored = (*Store)(nil)

// HoldsServiceName compares, as the methods below do.
func (m *Store) HoldsServiceName(id uint32, name tables.ServiceName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Names[id] == name
}

// HoldsService compares.
func (m *Store) HoldsService(id uint32, service tables.Service) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Services[id] == service
}

// HoldsBackend compares.
func (m *Store) HoldsBackend(id uint32, backend tables.Backend) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Backends[id] == backend
}

// Runs calls fn with the slots of a set one by one.
func (m *Store) Runs(set tables.Set, fn func([]uint32)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, slot := range slotsOf(set) {
		fn([]uint32{m.Slots[slot]})
	}
}

// HoldsFrontend compares.
func (m *Store) HoldsFrontend(key tables.FrontendKey, frontend tables.Frontend) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.Frontends[key]
	return ok && f == frontend, nil
}

// FrontendKeys yields three frontends at a time.
func (m *Store) FrontendKeys() iter.Seq2[[]tables.FrontendKey, error] {
	return func(yield func([]tables.FrontendKey, error) bool) {
		m.mu.Lock()
		all := slices.SortedFunc(maps.Keys(m.Frontends), tables.FrontendKey.Compare)
		m.mu.Unlock()
		for keys := range slices.Chunk(all, 3) {
			m.mu.Lock()
			keys = slices.DeleteFunc(slices.Clone(keys), func(k tables.FrontendKey) bool { _, ok := m.Frontends[k]; return !ok })
			m.mu.Unlock()
			if !yield(keys, nil) {
				return
			}
		}
	}
}

// Others returns a snapshot.
func (m *Store) Others() (tables.Snapshot, error) { return m.Snapshot() }

// CheckDerived finds nothing: all entries are written by the caller.
func (m *Store) CheckDerived() ([]tables.Difference, error) { return nil, nil }

// Rederive does nothing.
func (m *Store) Rederive() error { return nil }
