package explain

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
)

// read lists the maps that the steps only read: the programs that answer have the pinned ones. Of
// all others, those that a new map comes to at first, they have copies.
var read = []string{
	bpf.SockMapBlFrontend, bpf.SockMapBlService, bpf.SockMapBlSlot, bpf.SockMapBlBackend,
	bpf.SockMapBlSrcrange, bpf.SockMapBlServiceCidr, bpf.SockMapBlForeign, bpf.SockMapBlLocalCidr, bpf.SockMapBlFilter, bpf.SockMapBlAggregate,
	bpf.SockMapBlNodeAddr, bpf.SockMapBlNode, bpf.SockMapBlNodeId, bpf.SockMapBlDevice, bpf.SockMapBlDeviceId,
	bpf.SockMapBlSourcePort, bpf.SockMapBlTracking, bpf.SockMapBlNat,
	// Written to when a flow begins beyond the share of half-open ones, which a copy of bl_half_open
	// does not let happen, or ends there, which bl_removed_flow notes instead.
	bpf.SockMapBlOverflow,
}

// known are the names by which the programs that answer read a pinned map beside its copy.
func known(m *bpfmap.Maps) map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		bpf.ExplainSocketMapBlKnownStat:     m.BlServiceStat,
		bpf.ExplainSocketMapBlKnownAffinity: m.BlAffinity,
		bpf.ExplainPacketMapBlKnownClient:   m.BlClient,
		bpf.ExplainPacketMapBlKnownFresh:    m.BlNewClient,
		// Looked up after bl_flow, and left as it is by BL_KEEPS_FORMER.
		bpf.ExplainPacketMapBlFormerFlow: m.BlFlow,
	}
}

// object is a program that answers, with its copies.
type object struct {
	program *ebpf.Program
	copies  map[string]*ebpf.Map
	maps    *bpfmap.Maps
	chunks  []*ebpf.Map // of copies of growable tables
}

// load loads the program of an object, with the constants of the programs that run.
func load(m *bpfmap.Maps, name string, read func() (*ebpf.CollectionSpec, error), constants map[string][]byte) (*object, error) {
	spec, err := read()
	if err != nil {
		return nil, err
	}
	bpf.DirectValues(spec)
	for name, value := range constants {
		if v := spec.Variables[name]; v != nil && v.Constant() && int(v.Size()) == len(value) {
			if err := v.Set(value); err != nil {
				return nil, fmt.Errorf("constant %s: %w", name, err)
			}
		}
	}
	for name, value := range map[string]any{bpf.ExplainPacketVarBlFlowMoves: true, bpf.ExplainPacketVarBlHalfOpenMax: ^uint32(0) >> 1} {
		if v := spec.Variables[name]; v != nil {
			if err := v.Set(value); err != nil {
				return nil, fmt.Errorf("constant %s: %w", name, err)
			}
		}
	}
	o := &object{maps: m}
	replaced := replacements(m, spec)
	if err := o.size(spec, replaced); err != nil {
		return nil, errors.Join(err, o.close())
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replaced})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load %s: %w", name, err), o.close())
	}
	defer coll.Close()
	o.program = coll.DetachProgram(name)
	o.copies = make(map[string]*ebpf.Map)
	for name := range coll.Maps {
		if replaced[name] == nil {
			o.copies[name] = coll.DetachMap(name)
		}
	}
	return o, nil
}

// replacements returns the pinned maps that an object uses.
func replacements(m *bpfmap.Maps, spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	replaced := known(m)
	all := m.Replacements()
	for _, name := range read {
		replaced[name] = all[name]
	}
	maps.DeleteFunc(replaced, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil })
	return replaced
}

// size gives the maps their sizes, and the copies of growable tables their chunks.
func (o *object) size(spec *ebpf.CollectionSpec, replaced map[string]*ebpf.Map) error {
	for name, s := range spec.Maps {
		switch {
		case replaced[name] != nil:
			s.MaxEntries = replaced[name].MaxEntries()
		case s.Type == ebpf.LRUHash:
			s.MaxEntries = bpfmap.LeastLRU()
		}
	}
	if err := o.copyTable(spec.Maps[bpf.SockMapBlActive], o.maps.BlActive, false); err != nil {
		return err
	}
	// All chunks of the copy are one: only one Service counts in it at a time.
	return o.copyTable(spec.Maps[bpf.SockMapBlServiceStat], o.maps.BlServiceStat, true)
}

// copyTable gives the copy of a growable table as many chunks as the pinned one has, or one
// that is in the place of each.
func (o *object) copyTable(spec *ebpf.MapSpec, pinned *ebpf.Map, one bool) error {
	spec.MaxEntries = pinned.MaxEntries()
	for i := range spec.MaxEntries {
		chunk, err := bpfmap.Chunk(pinned, i)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := chunk.Close(); err != nil {
			return err
		}
		if i == 0 || !one {
			fresh, err := ebpf.NewMap(spec.InnerMap)
			if err != nil {
				return fmt.Errorf("copy of %s: %w", spec.Name, err)
			}
			o.chunks = append(o.chunks, fresh)
		}
		spec.Contents = append(spec.Contents, ebpf.MapKV{Key: i, Value: o.chunks[len(o.chunks)-1]})
	}
	return nil
}

// reset makes the copies what they are before a question. Counters are reset when they are read.
func (o *object) reset() error {
	for _, m := range o.copies {
		if m.Type() != ebpf.LRUHash {
			continue
		}
		if err := clearHash(m); err != nil {
			return err
		}
	}
	if half := o.copies[bpf.SockMapBlHalfOpen]; half != nil {
		// The count goes down when a flow that is over is removed.
		entry := bpf.SockBlHalfOpenEntry{Count: 1, Overflow: o.maps.Entries.HalfOpen.Overflow}
		if err := half.Put(uint32(0), &entry); err != nil {
			return err
		}
	}
	return nil
}

// clearHash removes all entries.
func clearHash(m *ebpf.Map) error {
	var keys [][]byte
	var key, value []byte
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		keys = append(keys, append([]byte(nil), key...))
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return entries.Err()
}

// copyActive copies how many active connections are counted.
func (o *object) copyActive() error {
	const size = uint32(bpf.SockBlChunkBL_CHUNK_SIZE)
	keys, entries := make([]uint32, size), make([]bpf.SockBlActiveEntry, size)
	for i := range o.maps.BlActive.MaxEntries() {
		chunk, err := bpfmap.Chunk(o.maps.BlActive, i)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		var cursor ebpf.MapBatchCursor
		n, err := chunk.BatchLookup(&cursor, keys, entries, nil)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
		if err == nil && int(i) < len(o.chunks)-1 { // the last one is of the counters
			_, err = o.chunks[i].BatchUpdate(keys[:n], entries[:n], nil)
		}
		if err := errors.Join(err, chunk.Close()); err != nil {
			return fmt.Errorf("copy %s: %w", bpf.SockMapBlActive, err)
		}
	}
	return nil
}

// context is as much of struct __sk_buff as a test run takes the device from.
type context struct {
	_       [10]uint32
	Ifindex uint32
}

// ask puts a question, see once. Where the answer goes by active connections, it is asked again
// when these have been copied, which takes longer than all else.
func (o *object) ask(query *bpf.SockBlExplainQuery, ifindex int) (*Answer, error) {
	answer, err := o.once(query, ifindex)
	if err != nil || !answer.Has(bpf.SockBlExplainStepBL_EXPLAIN_SET) || !servicemap.New(o.maps).Counts(answer.Frontend.Service) {
		return answer, err
	}
	if err := o.copyActive(); err != nil {
		return nil, err
	}
	return o.once(query, ifindex)
}

// once puts a question once. It has to be called in the client's network namespace, or that of the
// device by which the client's packets come in.
func (o *object) once(query *bpf.SockBlExplainQuery, ifindex int) (*Answer, error) {
	if err := o.reset(); err != nil {
		return nil, fmt.Errorf("make a copy: %w", err)
	}
	entry := bpf.SockBlExplainEntry{}
	entry.Query = *query
	question := o.copies[bpf.ExplainSocketMapBlExplain]
	if err := question.Put(uint32(0), &entry); err != nil {
		return nil, fmt.Errorf("ask: %w", err)
	}
	if _, err := o.program.Run(&ebpf.RunOptions{Data: make([]byte, 64), Context: context{Ifindex: uint32(ifindex)}}); err != nil {
		return nil, fmt.Errorf("test run: %w", err)
	}
	answer := new(Answer)
	if err := question.Lookup(uint32(0), &answer.SockBlExplainEntry); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return answer, o.counted(answer)
}

// counted adds which counters have moved.
func (o *object) counted(answer *Answer) error {
	for reason := range bpf.SockBlReasonBL_REASON_COUNT {
		var perCPU []uint64
		if err := o.copies[bpf.SockMapBlCounter].Lookup(uint32(reason), &perCPU); err != nil {
			return fmt.Errorf("read a counter: %w", err)
		}
		if !slices.ContainsFunc(perCPU, func(n uint64) bool { return n > 0 }) {
			continue
		}
		answer.Counted = append(answer.Counted, reason)
		clear(perCPU)
		if err := o.copies[bpf.SockMapBlCounter].Put(uint32(reason), perCPU); err != nil {
			return fmt.Errorf("reset a counter: %w", err)
		}
	}
	return nil
}

func (o *object) close() error {
	if o == nil {
		return nil
	}
	var errs []error
	if o.program != nil {
		errs = append(errs, o.program.Close())
	}
	for _, m := range o.copies {
		errs = append(errs, m.Close())
	}
	for _, m := range o.chunks {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
