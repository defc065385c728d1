package file

import "iter"

// table is a map that can tell what it was before a change, and go back to it.
type table[K comparable, V any] struct {
	now map[K]V
	// changed are the entries that differ, or have been written, since [table.track]; nil is
	// that they are not noted.
	changed map[K]entry[V]
}

// entry is what a key had.
type entry[V any] struct {
	value V
	found bool
}

func newTable[K comparable, V any]() table[K, V] { return table[K, V]{now: map[K]V{}} }

// track returns the table with changes noted from now on. It shares its entries with t.
func (t table[K, V]) track() table[K, V] {
	return table[K, V]{now: t.now, changed: map[K]entry[V]{}}
}

func (t table[K, V]) note(key K) {
	if t.changed == nil {
		return
	}
	if _, noted := t.changed[key]; !noted {
		value, found := t.now[key]
		t.changed[key] = entry[V]{value, found}
	}
}

func (t table[K, V]) put(key K, value V) {
	t.note(key)
	t.now[key] = value
}

func (t table[K, V]) remove(key K) {
	t.note(key)
	delete(t.now, key)
}

// was returns the entry from before the changes.
func (t table[K, V]) was(key K) (V, bool) {
	if e, noted := t.changed[key]; noted {
		return e.value, e.found
	}
	value, found := t.now[key]
	return value, found
}

// revert undoes the changes.
func (t table[K, V]) revert() {
	for key, e := range t.changed {
		if e.found {
			t.now[key] = e.value
		} else {
			delete(t.now, key)
		}
	}
}

// since returns what old has and what t has, of all keys in which they may differ: the changed
// ones when t is old with changes.
func (t table[K, V]) since(old table[K, V], changes bool) iter.Seq2[K, [2]V] {
	return func(yield func(K, [2]V) bool) {
		if changes {
			for key, e := range t.changed {
				if !yield(key, [2]V{e.value, t.now[key]}) {
					return
				}
			}
			return
		}
		for key, value := range old.now {
			if !yield(key, [2]V{value, t.now[key]}) {
				return
			}
		}
		for key, value := range t.now {
			if _, both := old.now[key]; !both {
				var none V
				if !yield(key, [2]V{none, value}) {
					return
				}
			}
		}
	}
}
