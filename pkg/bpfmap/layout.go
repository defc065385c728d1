package bpfmap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// The layout of a map is what its keys and values are. It has a number: a map of layout 1 is
// pinned under its name, of another one under name-number, so that a version finds what it can
// read. Where another layout is pinned than its own, a version
//
//   - makes its own map of a former one, see [layouts],
//   - begins with an empty map in place of a newer one that holds figures alone, see [figures],
//   - refuses to start in place of any other newer one, before it has changed anything.
//
// Maps of its own layout it takes over as they are: a change of one table costs the others nothing.
// Pins of other layouts are removed once its programs are attached.

// layout is the layout of a map that has had another one before.
type layout struct {
	number int
	former map[int]converter // by number
}

// converter puts what a map of a former layout holds, or a chunk of it, into one of the present
// layout.
type converter func(to, from *ebpf.Map) error

// layouts are all that is not layout 1, by the map's name.
var layouts = map[string]layout{
	bpf.SockMapBlServiceStat: {2, map[int]converter{
		1: convertPerCPU(func(v serviceStat1) bpf.SockBlServiceStatEntry {
			return bpf.SockBlServiceStatEntry{Connections: v.Connections, Refused: v.Refused}
		}),
	}},
}

// serviceStat1 is layout 1 of bl_service_stat: without the number of those dropped.
type serviceStat1 struct{ Connections, Refused uint64 }

// figures are the maps that lose nothing but what is displayed, or what is soon there again, when
// they begin empty.
var figures = []string{
	bpf.SockMapBlServiceStat, bpf.SockMapBlTraffic, bpf.SockMapBlCounter, bpf.SockMapBlUnapplied, bpf.SockMapBlAgent, bpf.SockMapBlExhausted,
	bpf.SockMapBlMonitor, bpf.SockMapBlMonitorCpu, bpf.SockMapBlMonitorRing, bpf.SockMapBlNatSeen, bpf.SockMapBlSandboxSeen,
	"bl_device_fault", "bl_status", "bl_config",
}

// numberOf returns the number of a map's layout.
func numberOf(name string) int { return max(1, layouts[name].number) }

// PinName returns the name under which a map is pinned.
func PinName(name string) string { return pinName(name, numberOf(name)) }

func pinName(name string, number int) string {
	if number == 1 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, number)
}

// splitPinName returns the map and the layout of a pin.
func splitPinName(pin string) (name string, number int) {
	name, suffix, _ := strings.Cut(pin, "-")
	if number, err := strconv.Atoi(suffix); err == nil && pinName(name, number) == pin {
		return name, number
	}
	return pin, 1
}

// pins are the layouts of the maps that are pinned in a folder, by name.
type pins map[string][]int

// findPins looks for pins of the maps that this version knows in a folder, which need not exist.
func findPins(dir string, specs map[string]*ebpf.MapSpec) (pins, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for pinned maps: %w", err)
	}
	found := make(pins)
	for _, e := range entries {
		if name, number := splitPinName(e.Name()); specs[name] != nil {
			found[name] = append(found[name], number)
		}
	}
	return found, nil
}

// former returns the highest of the former layouts that are pinned; 0 is none.
func (p pins) former(name string) int {
	highest := 0
	for _, number := range p[name] {
		if layouts[name].former[number] != nil {
			highest = max(highest, number)
		}
	}
	return highest
}

// check returns an [ErrOtherVersion] when the pins of a newer version hold what this one would
// lose.
func (p pins) check(dir string) error {
	var names []string
	for name, numbers := range p {
		own, highest := numberOf(name), slices.Max(numbers)
		if highest > own && !slices.Contains(numbers, own) && !slices.Contains(figures, name) {
			names = append(names, pinName(name, highest))
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("%s: %w, which is newer: this one cannot read its maps %s", dir, ErrOtherVersion, strings.Join(names, ", "))
}

// loadLayout opens the pinned map of the present layout, or makes one of a former one, unless that is
// 0, in the size that it has there.
//
// Both are there when an agent was killed before it had removed the former one, or when a version
// came back that knows the former one alone. Programs may have added to either of two LRU tables: what
// only the former one has is added to the present one. Of others the former one is used.
func (m *Maps) loadLayout(dir, name string, former int) (*ebpf.Map, error) {
	present := filepath.Join(dir, PinName(name))
	if former == 0 {
		return ebpf.LoadPinnedMap(present, nil)
	}
	path := filepath.Join(dir, pinName(name, former))
	from, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, err
	}
	spec := m.specs[name].Copy()
	spec.MaxEntries = from.MaxEntries()
	c := converted{name: name, from: from, convert: layouts[name].former[former]}
	if spec.InnerMap != nil {
		c.convert = convertChunks(spec.InnerMap, c.convert)
	}
	if err = os.ErrNotExist; spec.Type == ebpf.LRUHash {
		c.to, err = ebpf.LoadPinnedMap(present, nil)
	}
	if errors.Is(err, os.ErrNotExist) {
		c.to, err = ebpf.NewMap(spec)
	}
	if err != nil {
		return nil, errors.Join(err, from.Close())
	}
	m.converted, m.resized = append(m.converted, c), true
	if err := c.convert(c.to, from); err != nil {
		return nil, errors.Join(fmt.Errorf("convert %s: %w", path, err), c.to.Close())
	}
	return c.to, nil
}

// converted is a map of a former layout, whose entries are in one of the present layout.
type converted struct {
	name     string
	to, from *ebpf.Map
	convert  converter
}

// finishConverted adds what programs have added to LRU tables of a former layout meanwhile. They
// are not at work any more.
func (m *Maps) finishConverted() error {
	for _, c := range m.converted {
		if c.from.Type() != ebpf.LRUHash {
			continue
		}
		if err := c.convert(c.to, c.from); err != nil {
			return fmt.Errorf("convert map %s: %w", c.name, err)
		}
	}
	return m.closeConverted()
}

func (m *Maps) closeConverted() error {
	var errs []error
	for _, c := range m.converted {
		errs = append(errs, c.from.Close())
	}
	m.converted = nil
	return errors.Join(errs...)
}

// Converted returns the maps of former layouts that are not done with: those of the present layout
// have their entries.
func (m *Maps) Converted() []string {
	var list []string
	for _, c := range m.converted {
		list = append(list, c.name)
	}
	return list
}

// convertChunks converts a growable table.
func convertChunks(inner *ebpf.MapSpec, convert converter) converter {
	return func(to, from *ebpf.Map) error {
		return eachChunk(from, func(i uint32, former *ebpf.Map) error {
			chunk, err := ebpf.NewMap(inner)
			if err != nil {
				return err
			}
			defer chunk.Close()
			if err := convert(chunk, former); err != nil {
				return err
			}
			return to.Put(i, chunk)
		})
	}
}

// convertEach converts each entry of a map that is not per CPU. One that is in the LRU table already
// stays: programs that know the present layout have written it.
func convertEach[K, From, To any](convert func(From) To) converter {
	return func(to, from *ebpf.Map) error {
		if err := checkSize[From](from); err != nil {
			return err
		}
		flags := ebpf.UpdateAny
		if to.Type() == ebpf.LRUHash {
			flags = ebpf.UpdateNoExist
		}
		var errs []error
		err := Each(from, func(key *K, value *From) {
			if err := to.Update(*key, convert(*value), flags); !errors.Is(err, ebpf.ErrKeyExist) {
				errs = append(errs, err)
			}
		})
		return errors.Join(append(errs, err)...)
	}
}

// convertPerCPU converts an array of values of each CPU, those that are not zero.
func convertPerCPU[From comparable, To any](convert func(From) To) converter {
	return func(to, from *ebpf.Map) error {
		if err := checkSize[From](from); err != nil {
			return err
		}
		for i := range min(from.MaxEntries(), to.MaxEntries()) {
			var values []From
			if err := from.Lookup(i, &values); err != nil {
				return err
			}
			if !slices.ContainsFunc(values, func(v From) bool { return v != *new(From) }) {
				continue
			}
			converted := make([]To, len(values))
			for cpu, value := range values {
				converted[cpu] = convert(value)
			}
			if err := to.Put(i, converted); err != nil {
				return err
			}
		}
		return nil
	}
}

// checkSize returns an [ErrOtherVersion] when the values of a map have another size.
func checkSize[V any](m *ebpf.Map) error {
	if want := unsafe.Sizeof(*new(V)); uintptr(m.ValueSize()) != want {
		return fmt.Errorf("%w: values of %d bytes, want %d", ErrOtherVersion, m.ValueSize(), want)
	}
	return nil
}

// RemoveOtherLayouts removes the pins of other layouts, when the programs at work know those of
// the maps alone and nothing is left to be moved.
func (m *Maps) RemoveOtherLayouts(dir string) error {
	if len(m.converted) > 0 {
		return nil
	}
	found, err := findPins(dir, m.specs)
	if err != nil {
		return err
	}
	for name, numbers := range found {
		for _, number := range numbers {
			if number == numberOf(name) {
				continue
			}
			if err := os.Remove(filepath.Join(dir, pinName(name, number))); err != nil {
				return fmt.Errorf("remove a map of another layout: %w", err)
			}
		}
	}
	return nil
}
