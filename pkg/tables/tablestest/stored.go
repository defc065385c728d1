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

// StoredFrontends yields three frontends at a time.
func (m *Store) StoredFrontends() iter.Seq2[[]tables.StoredFrontend, error] {
	return func(yield func([]tables.StoredFrontend, error) bool) {
		m.mu.Lock()
		all := slices.SortedFunc(maps.Keys(m.Frontends), tables.FrontendKey.Compare)
		m.mu.Unlock()
		for keys := range slices.Chunk(all, 3) {
			if !yield(m.stored(keys), nil) {
				return
			}
		}
	}
}

// stored returns the frontends of these keys that are there.
func (m *Store) stored(keys []tables.FrontendKey) (list []tables.StoredFrontend) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		if f, ok := m.Frontends[key]; ok {
			list = append(list, tables.StoredFrontend{Key: key, Frontend: f})
		}
	}
	return list
}

// Others returns a snapshot.
func (m *Store) Others() (tables.Snapshot, error) { return m.Snapshot() }

// CheckDerived finds nothing: all entries are written by the caller.
func (m *Store) CheckDerived() iter.Seq2[[]tables.Difference, error] {
	return func(func([]tables.Difference, error) bool) {}
}

// Rederive does nothing.
func (m *Store) Rederive() error { return nil }
