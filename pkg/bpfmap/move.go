package bpfmap

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// An LRU table of another size takes the place of a former one while programs add to
// both. First the new programs are attached; those that serve packets look into the
// former flow table, too (bl_flow_moves), and add to the new one alone. Nothing is added to
// the former table from then on, so one pass over it moves all that it holds, and never in
// place of what the new programs have written. Programs that do not look there any more
// take their place.
//
// What the sockets' tables remember is moved before and after the programs are attached.

// Moved counts the entries of a table that one of another size replaces.
type Moved struct {
	Map     string
	Setting string // the field of the configuration that sets its size
	From    uint32 // entries that it had room for
	To      uint32
	Entries int
	// Dropped are those for which there is no room: of flows the half-open ones, then
	// those that were not used for longest.
	Dropped int
}

// movers move the entries of the LRU tables, by name.
var movers = map[string]func(m *Maps, now time.Duration, to, from *ebpf.Map) (Moved, error){
	bpf.SockMapBlFlow:      moveFlows,
	bpf.SockMapBlOverflow:  moveFlows,
	bpf.SockMapBlAffinity:  moveUsed[bpf.SockBlAffinityKey, bpf.SockBlAffinityEntry],
	bpf.SockMapBlClient:    moveUsed[bpf.SockBlClientKey, bpf.SockBlAffinityEntry],
	bpf.SockMapBlNewClient: moveUsed[bpf.SockBlClientKey, bpf.SockBlAffinityEntry],
	bpf.SockMapBlUdpPeer:   moveUsed[bpf.SockBlUdpPeerKey, bpf.SockBlUdpPeerEntry],
}

// loadFormer opens the former flow table that an agent has left which was killed while it
// moved entries, and moves what the sockets' tables remember.
func (m *Maps) loadFormer(dir string) error {
	left, err := ebpf.LoadPinnedMap(formerFlowPin(dir), nil)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("map %s: %w", bpf.TcMapBlFormerFlow, err)
	case m.former[bpf.SockMapBlFlow] == nil:
		m.former[bpf.SockMapBlFlow], m.resized = left, true
	default:
		// Two tables are replaced. The programs look into one of them alone, so what the other one holds
		// is moved there; programs that know the other one alone may still add to it.
		m.older = left
		if _, err := m.move(bpf.SockMapBlFlow, m.former[bpf.SockMapBlFlow], left); err != nil {
			return err
		}
	}
	for name, from := range m.former {
		if name == bpf.SockMapBlFlow {
			continue
		}
		if _, err := m.move(name, m.all[name], from); err != nil {
			return err
		}
	}
	return nil
}

// openFormer opens the former flow table, should one be pinned, for reading.
func (m *Maps) openFormer(dir string) error {
	left, err := ebpf.LoadPinnedMap(formerFlowPin(dir), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", bpf.TcMapBlFormerFlow, err)
	}
	m.former[bpf.SockMapBlFlow] = left
	return nil
}

// formerFlowPin is where the former flow table is pinned, which has the layout of the other one.
func formerFlowPin(dir string) string {
	return filepath.Join(dir, pinName(bpf.TcMapBlFormerFlow, numberOf(bpf.SockMapBlFlow)))
}

// pinFormer pins the former flow table, or removes the pin of one that is done with.
func (m *Maps) pinFormer(dir string) error {
	path := formerFlowPin(dir)
	var err error
	if former := m.former[bpf.SockMapBlFlow]; former != nil {
		err = pin(path, former)
	} else if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("pin map %s: %w", bpf.TcMapBlFormerFlow, err)
	}
	return nil
}

// Move moves the entries of the LRU tables that were replaced by others of another size, and
// completes those of another layout.
// The programs for packets that were loaded before are attached by then. They look
// into the former flow table, too, and are to be loaded and attached anew. After an
// error the former tables are kept.
func (m *Maps) Move() ([]Moved, error) {
	if len(m.former) == 0 && len(m.converted) == 0 {
		return nil, nil
	}
	// The programs that add to the former tables may still be running.
	if err := m.Barrier(); err != nil {
		return nil, err
	}
	if err := m.finishConverted(); err != nil {
		return nil, err
	}
	var list []Moved
	for _, name := range slices.Sorted(maps.Keys(m.former)) {
		moved, err := m.move(name, m.all[name], m.former[name])
		if err != nil {
			return nil, err
		}
		list = append(list, moved)
	}
	if m.older != nil {
		if _, err := m.move(bpf.SockMapBlFlow, m.BlFlow, m.older); err != nil {
			return nil, err
		}
	}
	return list, m.closeFormer()
}

func (m *Maps) closeFormer() error {
	errs := []error{m.older.Close()}
	m.older = nil
	for _, former := range m.former {
		errs = append(errs, former.Close())
	}
	clear(m.former)
	return errors.Join(errs...)
}

// Replaced returns the maps that others of another size or layout replace, as long as [Maps.Move] has
// not moved what they hold.
func (m *Maps) Replaced() []*ebpf.Map {
	list := slices.Collect(maps.Values(m.former))
	if m.older != nil {
		list = append(list, m.older)
	}
	for i := range m.converted {
		list = append(list, m.converted[i].from)
	}
	return list
}

func (m *Maps) move(name string, to, from *ebpf.Map) (Moved, error) {
	now, err := bpf.Clock()
	if err != nil {
		return Moved{}, err
	}
	moved, err := movers[name](m, now, to, from)
	if err != nil {
		return Moved{}, fmt.Errorf("move the entries of map %s: %w", name, err)
	}
	moved.Map, moved.Setting = name, Setting(name)
	moved.From, moved.To = from.MaxEntries(), to.MaxEntries()
	return moved, nil
}

// moveUsed moves entries that say when they were last used.
func moveUsed[K, V any](_ *Maps, _ time.Duration, to, from *ebpf.Map) (Moved, error) {
	return moveEntries(to, from, math.MaxInt32, func(_ *K, value *V) (uint64, error) {
		var used uint64
		switch v := any(value).(type) {
		case *bpf.SockBlAffinityEntry:
			used = v.LastUsed
		case *bpf.SockBlUdpPeerEntry:
			used = v.LastUsed
		}
		return lesser - 1 - used, nil
	})
}

// moveFlows moves entries of flows, both of a flow or none. Of half-open flows no more are
// moved into a smaller table than may begin there.
func moveFlows(m *Maps, now time.Duration, to, from *ebpf.Map) (Moved, error) {
	tail := math.MaxInt32
	if to == m.BlFlow {
		tail = 2 * int(m.MaxHalfOpen())
	}
	return moveEntries(to, from, tail, func(key *bpf.SockBlFlowKey, entry *bpf.SockBlFlowEntry) (uint64, error) {
		if !entry.IsReply() {
			return rankFlow(key, entry, now), nil
		}
		forwardKey, forward := entry.Reply().ForwardKey(key.Proto), bpf.SockBlFlowEntry{}
		switch err := from.Lookup(&forwardKey, &forward); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return math.MaxUint64, nil
		case err != nil:
			return 0, err
		}
		return rankFlow(&forwardKey, &forward, now), nil
	})
}

// seed makes flows differ in rank that are alike but for their addresses.
var seed = maphash.MakeSeed()

// rankFlow returns the rank of a flow by its forward entry: half-open flows come last, and
// before them those that have been idle for longest.
func rankFlow(key *bpf.SockBlFlowKey, forward *bpf.SockBlFlowEntry, now time.Duration) uint64 {
	idle := uint64(max(0, int32(uint32(now/time.Second)-forward.Forward.Used)))
	if forward.Forward.State().HalfOpen() {
		idle |= 1 << 31
	}
	bytes := (*[unsafe.Sizeof(*key)]byte)(unsafe.Pointer(key))
	return idle<<32 | maphash.Bytes(seed, bytes[:])>>32
}

// lesser is the least rank of entries that are moved after all others.
const lesser = 1 << 63

// moveEntries puts the entries of from into to, but for those that are there already. When
// there is not enough room, those of the greatest rank are dropped, and of the lesser ones
// no more are moved than tail.
func moveEntries[K, V any](to, from *ebpf.Map, tail int, rank func(*K, *V) (uint64, error)) (Moved, error) {
	limit, err := rankLimit(to, from, rank)
	if err != nil {
		return Moved{}, err
	}
	var moved Moved
	if limit == math.MaxUint64 {
		err = moveSome(to, from, math.MaxInt, &moved, func(*K, *V) (bool, error) { return true, nil })
		return moved, err
	}
	room := int(lruRoom(to.MaxEntries()))
	all := 0
	err = moveSome(to, from, room, &moved, func(key *K, value *V) (bool, error) {
		all++
		r, err := rank(key, value)
		return r < lesser && r <= limit, err
	})
	if err != nil {
		return Moved{}, err
	}
	err = moveSome(to, from, min(room, moved.Entries+tail), &moved, func(key *K, value *V) (bool, error) {
		r, err := rank(key, value)
		return r >= lesser && r <= limit, err
	})
	moved.Dropped = max(0, all-moved.Entries)
	return moved, err
}

// moveSome puts those entries into to that are wanted, until so many have been moved.
func moveSome[K, V any](to, from *ebpf.Map, most int, moved *Moved, wanted func(*K, *V) (bool, error)) error {
	var errs []error
	err := Each(from, func(key *K, value *V) {
		ok, err := wanted(key, value)
		if err != nil {
			errs = append(errs, err)
		}
		if !ok || moved.Entries >= most {
			return
		}
		if err := to.Update(key, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			errs = append(errs, err)
			return
		}
		moved.Entries++
	})
	return cmp.Or(err, errors.Join(errs...))
}

// rankLimit returns the greatest rank of which there is room for entries.
func rankLimit[K, V any](to, from *ebpf.Map, rank func(*K, *V) (uint64, error)) (uint64, error) {
	room := int(lruRoom(to.MaxEntries()))
	if from.MaxEntries() <= uint32(room) {
		return math.MaxUint64, nil
	}
	var ranks []uint64
	var errs []error
	err := Each(from, func(key *K, value *V) {
		r, err := rank(key, value)
		ranks, errs = append(ranks, r), append(errs, err)
	})
	if err = cmp.Or(err, errors.Join(errs...)); err != nil || len(ranks) <= room {
		return math.MaxUint64, err
	}
	slices.Sort(ranks)
	return ranks[room-1], nil
}

// lruRoom returns how many entries an LRU table of that size takes before it evicts one:
// each CPU keeps up to 128 free ones for itself.
func lruRoom(size uint32) uint32 { return size - min(size/4, keptFree()) }
