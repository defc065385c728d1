package bpfmap

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Table is a growable table: an array of chunks, each an array of T that is
// mapped into memory. An entry never moves. One goroutine may make it grow while others
// read.
type Table[T any] struct {
	outer    *ebpf.Map
	inner    *ebpf.MapSpec
	limit    tables.Limit // in entries of T
	perChunk uint32
	readOnly bool
	// list of the chunks; one that is longer takes its place, for others may read while
	// the table grows.
	list atomic.Pointer[[][]T]
}

// openTable maps the chunks that exist. perChunk counts T, which may be smaller
// than the map's value.
func openTable[T any](outer *ebpf.Map, spec *ebpf.MapSpec, readOnly bool) (*Table[T], error) {
	inner := spec.InnerMap
	perChunk := inner.MaxEntries * inner.ValueSize / uint32(unsafe.Sizeof(*new(T)))
	t := &Table[T]{
		outer:    outer,
		inner:    inner,
		limit:    tables.Limit{Table: spec.Name, Size: outer.MaxEntries() * perChunk, Setting: Setting(spec.Name)},
		perChunk: perChunk,
		readOnly: readOnly,
	}
	t.list.Store(new([][]T))
	for i := range outer.MaxEntries() {
		chunk, err := Chunk(outer, i)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return nil, errors.Join(err, t.close())
		}
		err = t.mapChunk(chunk)
		if err = errors.Join(err, chunk.Close()); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

// Chunk opens a chunk of a growable table. The error is [ebpf.ErrKeyNotExist] where it has
// not grown that far.
func Chunk(outer *ebpf.Map, i uint32) (*ebpf.Map, error) {
	var chunk *ebpf.Map
	if err := outer.Lookup(i, &chunk); err != nil {
		return nil, fmt.Errorf("open chunk %d: %w", i, err)
	}
	return chunk, nil
}

// countChunks returns how many chunks an outer map holds.
func countChunks(outer *ebpf.Map) (uint32, error) {
	for i := range outer.MaxEntries() {
		var id uint32
		err := outer.Lookup(i, &id)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return i, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return outer.MaxEntries(), nil
}

// mapChunk maps the next chunk. The mapping outlives the map's descriptor.
func (t *Table[T]) mapChunk(chunk *ebpf.Map) error {
	prot := unix.PROT_READ
	if !t.readOnly {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(chunk.FD(), 0, int(t.inner.MaxEntries*t.inner.ValueSize), prot, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: map chunk %d into memory: %w", t.limit.Table, len(t.chunks()), err)
	}
	longer := append(slices.Clip(t.chunks()), unsafe.Slice((*T)(unsafe.Pointer(&mem[0])), t.perChunk))
	t.list.Store(&longer)
	return nil
}

// Limit returns how far the table may grow.
func (t *Table[T]) Limit() tables.Limit { return t.limit }

func (t *Table[T]) chunks() [][]T { return *t.list.Load() }

// At returns an entry, or nil when the table has not grown that far.
func (t *Table[T]) At(id uint32) *T {
	chunks, chunk := t.chunks(), id/t.perChunk
	if chunk >= uint32(len(chunks)) {
		return nil
	}
	return &chunks[chunk][id%t.perChunk]
}

// Write fills entries from id on, all of which exist.
func (t *Table[T]) Write(id uint32, entries []T) {
	for chunks := t.chunks(); len(entries) > 0; {
		n := copy(chunks[id/t.perChunk][id%t.perChunk:], entries)
		id, entries = id+uint32(n), entries[n:]
	}
}

// Read calls fn with count entries from id on, some at a time, as far as they exist.
func (t *Table[T]) Read(id, count uint32, fn func([]T)) {
	for chunks := t.chunks(); count > 0 && id/t.perChunk < uint32(len(chunks)); {
		entries := chunks[id/t.perChunk][id%t.perChunk:]
		entries = entries[:min(count, uint32(len(entries)))]
		fn(entries)
		id, count = id+uint32(len(entries)), count-uint32(len(entries))
	}
}

// Len returns how many entries exist.
func (t *Table[T]) Len() uint32 { return uint32(len(t.chunks())) * t.perChunk }

// Grow returns an entry, adding chunks as needed: at least as many as there are,
// for the kernel waits for running programs each time some are added. The error
// is a [tables.FullError] beyond the table's limit.
func (t *Table[T]) Grow(id uint32) (*T, error) {
	if id >= t.limit.Size {
		return nil, t.limit.Full()
	}
	if id >= t.Len() {
		if err := t.Reserve(max(id+1, min(2*t.Len(), t.limit.Size))); err != nil {
			return nil, err
		}
	}
	return t.At(id), nil
}

// Reserve makes room for count entries.
func (t *Table[T]) Reserve(count uint32) error {
	have, want := uint32(len(t.chunks())), (min(count, t.limit.Size)+t.perChunk-1)/t.perChunk
	if want <= have {
		return nil
	}
	added, err := addChunks(t.outer, t.inner, have, want)
	for _, chunk := range added {
		if err == nil {
			err = t.mapChunk(chunk)
		}
		err = errors.Join(err, chunk.Close())
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", t.limit.Table, err)
	}
	return nil
}

// GrowServiceStats gives the Services that have an entry their counters, which are not mapped
// into memory.
func (m *Maps) GrowServiceStats() error {
	outer, inner := m.BlServiceStat, m.specs[bpf.SockMapBlServiceStat].InnerMap
	want := m.Service.Len() / inner.MaxEntries
	if m.statChunks >= want {
		return nil
	}
	added, err := addChunks(outer, inner, m.statChunks, want)
	for _, chunk := range added {
		err = errors.Join(err, chunk.Close())
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
	}
	m.statChunks = want
	return nil
}

// addChunks makes the chunks from first up to end and puts them into the outer
// map in one call. The caller closes what is returned.
func addChunks(outer *ebpf.Map, inner *ebpf.MapSpec, first, end uint32) ([]*ebpf.Map, error) {
	var added []*ebpf.Map
	var keys, fds []uint32
	for i := first; i < end; i++ {
		chunk, err := ebpf.NewMap(inner)
		if err != nil {
			return added, fmt.Errorf("make chunk %d: %w", i, err)
		}
		added = append(added, chunk)
		keys, fds = append(keys, i), append(fds, uint32(chunk.FD()))
	}
	if _, err := outer.BatchUpdate(keys, fds, nil); err != nil {
		return added, fmt.Errorf("add chunks %d to %d: %w", first, end-1, err)
	}
	return added, nil
}

// close unmaps the chunks; entries must not be used afterwards. A table that was not opened is nil.
func (t *Table[T]) close() error {
	if t == nil {
		return nil
	}
	var errs []error
	for _, c := range t.chunks() {
		mem := unsafe.Slice((*byte)(unsafe.Pointer(&c[0])), int(t.inner.MaxEntries*t.inner.ValueSize))
		errs = append(errs, unix.Munmap(mem))
	}
	t.list.Store(new([][]T))
	return errors.Join(errs...)
}
