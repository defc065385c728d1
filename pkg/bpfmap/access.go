package bpfmap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Put writes an entry. The error is a [tables.FullError] when there is no room for another.
func Put(kernelMap *ebpf.Map, key, value any) error {
	err := kernelMap.Put(key, value)
	if noRoom(err) {
		return LimitOf(kernelMap).Full()
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", nameOf(kernelMap), err)
	}
	return nil
}

// Remove deletes an entry of a hash or trie; one that is not there is no error.
func Remove(kernelMap *ebpf.Map, key any) error {
	if err := kernelMap.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("map %s: %w", nameOf(kernelMap), err)
	}
	return nil
}

// Each calls fn for every entry of a hash or trie. A hash is read bucket by
// bucket, so entries that come and go meanwhile do not lead it astray.
func Each[K, V any](kernelMap *ebpf.Map, fn func(*K, *V)) error {
	return EachBatch(kernelMap, func(keys []K, values []V) bool {
		for i := range keys {
			fn(&keys[i], &values[i])
		}
		return true
	})
}

// EachBatch calls fn with the entries that one system call reads, until it returns false. Of a
// per-CPU map each key has as many values as there are possible CPUs, one after the other.
func EachBatch[K, V any](kernelMap *ebpf.Map, fn func([]K, []V) bool) error {
	var cursor ebpf.MapBatchCursor
	perKey := 1
	if t := kernelMap.Type(); t == ebpf.PerCPUHash || t == ebpf.PerCPUArray {
		perKey = ebpf.MustPossibleCPU()
	}
	size := min(max(batch/perKey, leastBatch), int(kernelMap.MaxEntries()))
	keys, values := make([]K, size), make([]V, size*perKey)
	for {
		n, err := kernelMap.BatchLookup(&cursor, keys, values, nil)
		if n > 0 && !fn(keys[:n], values[:n*perKey]) || errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", kernelMap, err)
		}
	}
}

// batch is how many values are read by one system call, leastBatch how many entries at least: more
// than any bucket of a hash holds.
const (
	batch      = 4096
	leastBatch = 512
)

// LimitOf returns how much a hash, trie or array takes.
func LimitOf(kernelMap *ebpf.Map) tables.Limit {
	name := nameOf(kernelMap)
	return tables.Limit{Table: name, Size: kernelMap.MaxEntries(), Setting: Setting(name)}
}

// nameOf returns the name of a map.
func nameOf(kernelMap *ebpf.Map) string {
	info, err := kernelMap.Info()
	if err != nil {
		return kernelMap.String()
	}
	return info.Name
}

// Barrier waits for the programs that are running. The kernel promises that an
// update of a map of maps returns only after every program that could have seen
// the former value has ended (maybe_wait_bpf_programs); so the update need not
// change anything.
func (m *Maps) Barrier() error {
	outer := m.BlService
	chunk, err := Chunk(outer, 0)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil // nothing was ever handed out
	}
	if err == nil {
		err = errors.Join(outer.Put(uint32(0), chunk), chunk.Close())
	}
	if err != nil {
		return fmt.Errorf("wait for running programs: map %s: %w", bpf.SockMapBlService, err)
	}
	return nil
}
