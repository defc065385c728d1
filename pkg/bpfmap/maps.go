package bpfmap

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/setting"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Schema is the version of the tables' layout. Maps of different schemas are
// pinned side by side.
const Schema = int(bpf.SockBlSchemaBL_SCHEMA)

// ErrOtherVersion says that the maps of another version have to be cleaned up first.
var ErrOtherVersion = errors.New("pinned by another version")

// Sizes are how many entries the maps may hold. Only the LRU maps take their
// memory at once.
type Sizes struct {
	Frontends    uint32
	Services     uint32 // Service ports, each family counted
	Backends     uint32 // endpoints of all Service ports
	Slots        uint32
	Affinity     uint32 // clients with session affinity
	UDPPeers     uint32 // two for each Service that an unconnected UDP socket uses beyond its first
	SourceRanges uint32
	Flows        uint32 // two for each packet flow
	Clients      uint32 // clients of packets with session affinity
	CountTraffic bool   // of Service ports and backends; see [Maps.CountsTraffic]
}

// DefaultSizes fit a large cluster.
var DefaultSizes = Sizes{
	Frontends:    1 << 18,
	Services:     1 << 18,
	Backends:     1 << 21,
	Slots:        1 << 24,
	Affinity:     1 << 16,
	UDPPeers:     1 << 15,
	SourceRanges: 1 << 16,
	Flows:        1 << 16,
	Clients:      1 << 14,
}

// trafficEntries are as many Service ports and backends as have their packets counted where any has.
const trafficEntries = 1 << 16

// sizing is the field of the configuration that sets a map's size.
type sizing struct {
	setting string
	entries func(*Sizes) *uint32
	part    uint32 // of as many entries the map has one; 0 is all
}

// sized lists the maps whose size can be set.
var sized = map[string]sizing{
	bpf.SockMapBlFrontend:    {"tables.maxFrontends", func(s *Sizes) *uint32 { return &s.Frontends }, 0},
	bpf.SockMapBlService:     {"tables.maxServices", func(s *Sizes) *uint32 { return &s.Services }, 0},
	bpf.SockMapBlServiceName: {"tables.maxServices", func(s *Sizes) *uint32 { return &s.Services }, 0},
	bpf.SockMapBlServiceStat: {"tables.maxServices", func(s *Sizes) *uint32 { return &s.Services }, 0},
	bpf.SockMapBlSlot:        {"tables.maxSlots", func(s *Sizes) *uint32 { return &s.Slots }, 0},
	bpf.SockMapBlBackend:     {"tables.maxBackends", func(s *Sizes) *uint32 { return &s.Backends }, 0},
	bpf.SockMapBlActive:      {"tables.maxBackends", func(s *Sizes) *uint32 { return &s.Backends }, 0},
	bpf.SockMapBlOutlier:     {"tables.maxBackends", func(s *Sizes) *uint32 { return &s.Backends }, 0},
	bpf.SockMapBlEndpoint:    {"tables.maxBackends", func(s *Sizes) *uint32 { return &s.Backends }, 0},
	bpf.SockMapBlAffinity:    {"tables.maxAffinityEntries", func(s *Sizes) *uint32 { return &s.Affinity }, 0},
	bpf.SockMapBlUdpPeer:     {"tables.maxUDPPeers", func(s *Sizes) *uint32 { return &s.UDPPeers }, 0},
	bpf.SockMapBlSrcrange:    {"tables.maxSourceRanges", func(s *Sizes) *uint32 { return &s.SourceRanges }, 0},
	bpf.SockMapBlFlow:        {"tables.maxFlows", func(s *Sizes) *uint32 { return &s.Flows }, 0},
	bpf.SockMapBlOverflow:    {"tables.maxFlows", func(s *Sizes) *uint32 { return &s.Flows }, overflowPart},
	bpf.SockMapBlClient:      {"tables.maxClients", func(s *Sizes) *uint32 { return &s.Clients }, 0},
	bpf.SockMapBlNewClient:   {"tables.maxClients", func(s *Sizes) *uint32 { return &s.Clients }, newClientPart},
}

// Setting returns the field of the configuration that sets the size of a map, "" when it is
// fixed.
func Setting(mapName string) string { return sized[mapName].setting }

// Growable are the tables that grow with the Services.
type Growable struct {
	Service     *Table[bpf.SockBlServiceEntry]
	ServiceName *Table[bpf.SockBlServiceNameEntry]
	Backend     *Table[bpf.SockBlBackendEntry]
	Slot        *Table[uint32]
	// Active can be written also when the others were opened for reading: who removes flows
	// counts them there.
	Active *Table[bpf.SockBlActiveEntry]
	// Outlier is by the ids of Backend. The programs write it, too.
	Outlier *Table[bpf.SockBlOutlierEntry]
}

// Maps are the tables in the kernel. What is in memory is gone after [Maps.Close].
type Maps struct {
	bpf.SockMaps
	AgentMaps
	Growable
	Entries Entries
	// NodeMu is held by pkg/nodemap while Entries.Node is read or written.
	NodeMu sync.Mutex

	specs map[string]*ebpf.MapSpec
	all   map[string]*ebpf.Map

	mapped   [][]byte // the memory of Entries
	readOnly bool     // the memory of all tables
	// resized is set when a pinned map was replaced by one of another size.
	resized bool
	// former are the LRU tables that are replaced, until [Maps.Move] has moved what they
	// hold; by name. Of maps that are opened for reading it is the flow table alone.
	former map[string]*ebpf.Map
	// older is the flow table before that of former, of an agent that was killed while it replaced it.
	older *ebpf.Map
	// converted are those of another layout, until [Maps.Move] has taken what they hold.
	converted []converted
	// others are those that [open] has found in another layout.
	others []OtherLayout
	// statChunks counts the chunks of the Services' counters.
	statChunks uint32
}

// embedded returns the maps' definitions of the embedded object, which is read once: that
// takes some 50 ms.
var embedded = sync.OnceValues(func() (map[string]*ebpf.MapSpec, error) {
	spec, err := bpf.LoadSock()
	if err != nil {
		return nil, fmt.Errorf("read the embedded BPF object: %w", err)
	}
	return spec.Maps, nil
})

// mapSpecs returns the maps' definitions with the sizes filled in, by name.
func mapSpecs(sizes Sizes) (map[string]*ebpf.MapSpec, error) {
	definitions, err := embedded()
	if err != nil {
		return nil, err
	}
	specs := make(map[string]*ebpf.MapSpec, len(definitions)+len(agentSpecs))
	for name, m := range definitions {
		own := *m // the types are shared
		specs[name] = &own
	}
	maps.Copy(specs, agentSpecs)
	for _, name := range []string{bpf.SockMapBlNatSeen, bpf.SockMapBlSandboxSeen} {
		specs[name].MaxEntries = max(specs[name].MaxEntries, uint32(os.Getpagesize()))
	}
	specs[bpf.SockMapBlMonitorRing].InnerMap = RingSpec(1)
	if sizes.CountTraffic {
		specs[bpf.SockMapBlTraffic].MaxEntries = trafficEntries
	}
	for name, s := range sized {
		m := specs[name]
		entries := *s.entries(&sizes)
		if entries == 0 {
			return nil, setting.Errorf(s.setting, "must be at least 1")
		}
		if m.InnerMap == nil {
			m.MaxEntries = entries
			if s.part > 0 {
				m.MaxEntries = max((entries-1)/s.part+1, LeastLRU())
			}
			continue
		}
		perChunk := m.InnerMap.MaxEntries
		if name == bpf.SockMapBlSlot {
			perChunk *= uint32(bpf.SockBlChunkBL_LINE_SIZE)
		}
		m.MaxEntries = (entries-1)/perChunk + 1
	}
	return specs, nil
}

// RingSpec returns the definition of a ring of events, which has room for so many bytes or more.
func RingSpec(size uint32) *ebpf.MapSpec {
	pages := max(size, uint32(os.Getpagesize()))
	return &ebpf.MapSpec{Name: "bl_events", Type: ebpf.RingBuf, MaxEntries: 1 << bits.Len32(pages-1)}
}

// names returns the names of the maps that are shared by all programs, sorted.
func names(specs map[string]*ebpf.MapSpec) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(specs)), func(name string) bool {
		return name[0] == '.' // constants of one load
	})
}

// Load opens the maps that are pinned in dir and makes those that are not. A
// pinned map of another size or a former layout is replaced by a new one; the programs must be
// loaded anew to use it. It holds the entries of the former one, but for those of LRU tables, to
// which programs add while they are read: see [Maps.Move]. Nothing is pinned.
//
// dir need not exist. The error of a map that is pinned but not like this
// version's names it.
func Load(dir string, sizes Sizes) (*Maps, error) {
	specs, err := mapSpecs(sizes)
	if err != nil {
		return nil, err
	}
	m := &Maps{specs: specs, all: make(map[string]*ebpf.Map), former: make(map[string]*ebpf.Map)}
	pinned, err := findPins(dir, specs)
	if err != nil {
		return nil, err
	}
	if err := pinned.check(dir); err != nil {
		return nil, err
	}
	for _, name := range names(specs) {
		if err := m.loadMap(dir, name, pinned.former(name)); err != nil {
			return nil, errors.Join(fmt.Errorf("map %s: %w", name, err), m.Close())
		}
	}
	if err := m.loadFormer(dir); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if err := m.mapTables(false); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	// A program may still have read what a former agent took out.
	if err := m.Barrier(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if m.Entries.SourcePort.LocalMax == 0 {
		m.SetSourcePorts(DefaultSourcePorts) // until told otherwise
	}
	m.Entries.SetSourceShare(m.MaxFlows())
	return m, nil
}

// Open opens the maps that are pinned in dir for reading. The error is
// [os.ErrNotExist] when dir holds none, and an [ErrOtherVersion] when one has another layout.
func Open(dir string) (*Maps, error) {
	return open(dir, func(o OtherLayout) error {
		return fmt.Errorf("map %s: %w, which has %s", o.Map, ErrOtherVersion, o.Why)
	})
}

// OpenReadable is [Open] of maps that may be another version's: see [Maps.OtherLayouts].
func OpenReadable(dir string) (*Maps, error) {
	return open(dir, func(OtherLayout) error { return nil })
}

// open opens the maps that are pinned in dir for reading, as long as other returns no error for those
// of another layout.
func open(dir string, other func(OtherLayout) error) (*Maps, error) {
	specs, err := mapSpecs(DefaultSizes)
	if err != nil {
		return nil, err
	}
	pinned, err := findPins(dir, specs)
	if err != nil {
		return nil, err
	}
	if len(pinned) == 0 {
		return nil, fmt.Errorf("maps in %s: %w", dir, os.ErrNotExist)
	}
	m := &Maps{specs: specs, all: make(map[string]*ebpf.Map), former: make(map[string]*ebpf.Map)}
	for _, name := range names(specs) {
		if err := m.openMap(dir, name, pinned, other); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	if err := m.openFormer(dir); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if err := m.mapTables(true); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// loadMap opens or makes a map, or one of the pinned one of a former layout, unless that is 0. One
// of another size gets what the pinned one holds, or that becomes the former one.
func (m *Maps) loadMap(dir, name string, former int) error {
	spec := m.specs[name]
	path := filepath.Join(dir, PinName(name))
	pinned, err := m.loadLayout(dir, name, former)
	if errors.Is(err, os.ErrNotExist) {
		m.all[name], err = ebpf.NewMap(spec)
		return err
	}
	if err != nil {
		return err
	}
	likePinned := spec.Copy()
	likePinned.MaxEntries = pinned.MaxEntries()
	if err := likePinned.Compatible(pinned); err != nil {
		return errors.Join(fmt.Errorf("%s: %w: %w", path, ErrOtherVersion, err), pinned.Close())
	}
	if pinned.MaxEntries() == spec.MaxEntries {
		m.all[name] = pinned
		return nil
	}
	fresh, err := ebpf.NewMap(spec)
	if err != nil {
		return errors.Join(err, pinned.Close())
	}
	m.all[name], m.resized = fresh, true
	if spec.Type == ebpf.LRUHash {
		m.former[name] = pinned
		return nil
	}
	err = copyMap(fresh, pinned)
	if noRoom(err) {
		err = tables.Limit{Table: spec.Name, Size: capacity(fresh, spec), Setting: Setting(spec.Name)}.Full()
	}
	if err != nil {
		err = fmt.Errorf("copy %s to the new size: %w", path, err)
	}
	return errors.Join(err, pinned.Close())
}

// noRoom reports whether a map could not take another entry.
func noRoom(err error) bool {
	return errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC)
}

// copyMap copies all entries of a map that the agent alone writes to; chunks of a growable
// table are shared.
func copyMap(to, from *ebpf.Map) error {
	switch from.Type() {
	case ebpf.ArrayOfMaps:
		return copyChunks(to, from)
	case ebpf.PerCPUArray:
		return copyCounters(to, from)
	case ebpf.PerCPUHash:
		return nil // traffic is counted from now on, or no more
	}
	var key, value []byte
	entries := from.Iterate()
	for entries.Next(&key, &value) {
		if err := to.Put(key, value); err != nil {
			return err
		}
	}
	return entries.Err()
}

func copyChunks(to, from *ebpf.Map) error {
	return eachChunk(from, func(i uint32, chunk *ebpf.Map) error {
		if i >= to.MaxEntries() {
			return unix.E2BIG
		}
		return to.Put(i, chunk)
	})
}

// eachChunk calls fn with the chunks of a growable table.
func eachChunk(outer *ebpf.Map, fn func(i uint32, chunk *ebpf.Map) error) error {
	for i := range outer.MaxEntries() {
		chunk, err := Chunk(outer, i)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := errors.Join(fn(i, chunk), chunk.Close()); err != nil {
			return err
		}
	}
	return nil
}

// copyCounters copies the counters that both versions have.
func copyCounters(to, from *ebpf.Map) error {
	for i := range min(to.MaxEntries(), from.MaxEntries()) {
		var perCPU []uint64
		if err := from.Lookup(i, &perCPU); err != nil {
			return err
		}
		if err := to.Put(i, perCPU); err != nil {
			return err
		}
	}
	return nil
}

// mapTables maps the memory of the tables that are written in place.
func (m *Maps) mapTables(readOnly bool) error {
	m.readOnly = readOnly
	// The typed fields share what all holds.
	c := ebpf.Collection{Maps: maps.Clone(m.all)}
	err := errors.Join(c.Assign(&m.SockMaps), c.Assign(&m.AgentMaps))
	if err != nil {
		return err
	}
	if m.Service, err = openTable[bpf.SockBlServiceEntry](m.BlService, m.specs[bpf.SockMapBlService], readOnly); err != nil {
		return err
	}
	if m.ServiceName, err = openTable[bpf.SockBlServiceNameEntry](m.BlServiceName, m.specs[bpf.SockMapBlServiceName], readOnly); err != nil {
		return err
	}
	if m.Backend, err = openTable[bpf.SockBlBackendEntry](m.BlBackend, m.specs[bpf.SockMapBlBackend], readOnly); err != nil {
		return err
	}
	if m.Slot, err = openTable[uint32](m.BlSlot, m.specs[bpf.SockMapBlSlot], readOnly); err != nil {
		return err
	}
	if m.Active, err = openTable[bpf.SockBlActiveEntry](m.BlActive, m.specs[bpf.SockMapBlActive], false); err != nil {
		return err
	}
	if m.Outlier, err = openTable[bpf.SockBlOutlierEntry](m.BlOutlier, m.specs[bpf.SockMapBlOutlier], readOnly); err != nil {
		return err
	}
	if err = m.mapEntries(); err != nil {
		return err
	}
	m.statChunks, err = countChunks(m.BlServiceStat)
	return err
}

// CountsTraffic reports whether packets of Services are counted.
func (m *Maps) CountsTraffic() bool { return m.BlTraffic.MaxEntries() == trafficEntries }

// newSuffix ends the name of a pin until it takes the place of the former one.
const newSuffix = "_new"

// Pin pins the maps in dir, which exists, in place of any that are pinned there.
func (m *Maps) Pin(dir string) error {
	if err := removeNew(dir, m.specs); err != nil {
		return err
	}
	// Before the table that takes its place: an agent that is killed here leaves both.
	if err := m.pinFormer(dir); err != nil {
		return err
	}
	for name, kernelMap := range m.all {
		if err := pin(filepath.Join(dir, PinName(name)), kernelMap); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// Pinned reports whether each map has a pin in dir, which is read once.
func (m *Maps) Pinned(dir string) bool {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	there := make(map[string]bool, len(pins))
	for _, p := range pins {
		there[p.Name()] = true
	}
	for name := range m.all {
		if !there[PinName(name)] {
			return false
		}
	}
	return true
}

// removeNew removes what an agent that was killed has left beside the pins.
func removeNew(dir string, specs map[string]*ebpf.MapSpec) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look for pinned maps: %w", err)
	}
	for _, e := range entries {
		pin, isNew := strings.CutSuffix(e.Name(), newSuffix)
		name, _ := splitPinName(pin)
		if !isNew || specs[name] == nil && name != bpf.TcMapBlFormerFlow {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove a pin that was not completed: %w", err)
		}
	}
	return nil
}

// pin pins a map in place of what may be pinned there. Where else it is pinned, it stays so.
func pin(path string, kernelMap *ebpf.Map) error {
	if same, err := samePin(path, kernelMap); err != nil || same {
		return err
	}
	// A pin is replaced by renaming over it: a process that opens the path finds one of the
	// two.
	fresh := path + newSuffix
	// The library moves the pin of a map that was opened by one. A copy does not know of it.
	unpinned, err := kernelMap.Clone()
	if err != nil {
		return err
	}
	if err := errors.Join(unpinned.Pin(fresh), unpinned.Close()); err != nil {
		return err
	}
	if err := unix.Rename(fresh, path); err != nil {
		return fmt.Errorf("rename %s: %w", fresh, err)
	}
	return nil
}

// All returns all maps by name, in the order of their names.
func (m *Maps) All() iter.Seq2[string, *ebpf.Map] {
	return func(yield func(string, *ebpf.Map) bool) {
		for _, name := range names(m.specs) {
			if !yield(name, m.all[name]) {
				return
			}
		}
	}
}

// Capacity returns how many entries a map may hold, those of all chunks it may have.
func (m *Maps) Capacity(name string) uint32 { return capacity(m.all[name], m.specs[name]) }

// capacity is [Maps.Capacity] of a map with its definition.
func capacity(kernelMap *ebpf.Map, spec *ebpf.MapSpec) uint32 {
	size := kernelMap.MaxEntries()
	if spec.InnerMap != nil {
		size *= spec.InnerMap.MaxEntries
	}
	if spec.Name == bpf.SockMapBlSlot {
		size *= uint32(bpf.SockBlChunkBL_LINE_SIZE)
	}
	return size
}

// ReadOnly reports whether the maps were opened for reading.
func (m *Maps) ReadOnly() bool { return m.readOnly }

// Counter returns what all CPUs have counted.
func (m *Maps) Counter(reason bpf.SockBlReason) (uint64, error) {
	if uint32(reason) >= m.BlCounter.MaxEntries() {
		return 0, nil // of a version that did not count it
	}
	var perCPU []uint64
	if err := m.BlCounter.Lookup(uint32(reason), &perCPU); err != nil {
		return 0, fmt.Errorf("map %s: %w", bpf.SockMapBlCounter, err)
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// Resized reports whether a pinned map was replaced by one of another size or layout:
// programs that are at work do not see what is written from now on.
func (m *Maps) Resized() bool { return m.resized }

// Replacements returns the maps by name, in place of which those of an object are not made; see
// [ebpf.CollectionOptions].
func (m *Maps) Replacements() map[string]*ebpf.Map {
	replaced := maps.Clone(m.all)
	replaced[bpf.TcMapBlFormerFlow] = cmp.Or(m.former[bpf.SockMapBlFlow], m.BlFlow)
	return replaced
}

// FormerFlow returns the former flow table, which programs are to look into, too; nil when there is
// none. See [Maps.Move].
func (m *Maps) FormerFlow() *ebpf.Map { return m.former[bpf.SockMapBlFlow] }

// Close releases descriptors and memory. Pinned maps live on.
func (m *Maps) Close() error {
	var errs []error
	errs = append(errs, m.Service.close(), m.ServiceName.close(), m.Backend.close(), m.Slot.close(), m.Active.close(), m.Outlier.close(),
		m.unmapEntries())
	for _, kernelMap := range m.all {
		errs = append(errs, kernelMap.Close())
	}
	return errors.Join(append(errs, m.closeFormer(), m.closeConverted())...)
}
