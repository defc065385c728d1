package bpfmap

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/tests/bpffs"
)

var record = flag.Bool("record", false, "add new layouts to testdata/layouts")

// recorded returns the text of every layout that a version has had, by the name of the pin.
func recorded(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("testdata/layouts")
	must(t, err)
	layouts := make(map[string]string)
	for _, entry := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		pin, _, _ := strings.Cut(entry, ":")
		layouts[pin] = entry
	}
	return layouts
}

// layoutText describes what a map's layout is made of: all but its size.
func layoutText(t *testing.T, spec *ebpf.MapSpec) string {
	t.Helper()
	text := fmt.Sprintf("%s: %v, flags %#x, key of %d bytes%s, value of %d bytes%s", PinName(spec.Name), spec.Type, spec.Flags,
		spec.KeySize, typeText(t, spec.Key), spec.ValueSize, typeText(t, spec.Value))
	if inner := spec.InnerMap; inner != nil && inner.Type != ebpf.RingBuf {
		text += fmt.Sprintf("\n%v of %d, flags %#x, value of %d bytes%s", inner.Type, inner.MaxEntries, inner.Flags,
			inner.ValueSize, typeText(t, inner.Value))
	}
	return text
}

// typeText is a type of C as a declaration of Go, "" when there is none.
func typeText(t *testing.T, typ btf.Type) string {
	t.Helper()
	if typ == nil {
		return ""
	}
	if _, ok := typ.(*btf.Pointer); ok {
		return ""
	}
	var f btf.GoFormatter
	text, err := f.TypeDeclaration("T", typ)
	must(t, err)
	return strings.ReplaceAll(strings.TrimPrefix(text, "type T"), "_ structs.HostLayout; ", "")
}

// TestLayouts: a layout that has changed has a new number, and those that it has had are taken over.
func TestLayouts(t *testing.T) {
	specs, err := mapSpecs(DefaultSizes)
	must(t, err)
	known := recorded(t)
	for _, name := range names(specs) {
		text, was := layoutText(t, specs[name]), known[PinName(name)]
		switch {
		case was == "" && *record:
			known[PinName(name)] = text
		case was == "":
			t.Errorf("%s is new: go test ./pkg/bpfmap -run TestLayouts -record", PinName(name))
		case was != text:
			t.Errorf("%s has changed: give it another number in layouts, and read the former one there. It was\n%s\nand is\n%s", PinName(name), was, text)
		}
		for number := 1; number < numberOf(name); number++ {
			if known[pinName(name, number)] != "" && layouts[name].former[number] == nil {
				t.Errorf("layout %d of %s is lost", number, name)
			}
		}
	}
	if *record {
		var all []string
		for _, pin := range slices.Sorted(maps.Keys(known)) {
			all = append(all, known[pin])
		}
		must(t, os.WriteFile("testdata/layouts", []byte(strings.Join(all, "\n\n")+"\n"), 0o644))
	}
}

func TestPinNames(t *testing.T) {
	for pin, want := range map[string]struct {
		name   string
		number int
	}{
		"bl_flow": {"bl_flow", 1}, "bl_flow-2": {"bl_flow", 2}, "bl_flow-12": {"bl_flow", 12},
		"bl_flow-1": {"bl_flow-1", 1}, "bl_flow-02": {"bl_flow-02", 1}, "bl_flow-x": {"bl_flow-x", 1}, "bl_flow_new": {"bl_flow_new", 1},
	} {
		if name, number := splitPinName(pin); name != want.name || number != want.number {
			t.Errorf("%s is layout %d of %s", pin, number, name)
		}
	}
}

// pinned makes a map and pins it.
func pinned(t *testing.T, path string, spec *ebpf.MapSpec, entries ...ebpf.MapKV) *ebpf.Map {
	t.Helper()
	own := spec.Copy()
	own.Contents = entries
	m, err := ebpf.NewMap(own)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	must(t, m.Pin(path))
	return m
}

func listPins(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestFormerServiceStat takes over the counters of a version that did not count what was dropped.
func TestFormerServiceStat(t *testing.T) {
	needRoot(t)
	dir := bpffs.New(t)
	specs, err := mapSpecs(small)
	must(t, err)
	outer := specs[bpf.SockMapBlServiceStat].Copy()
	outer.InnerMap.ValueSize, outer.InnerMap.Value = 16, nil
	cpus := ebpf.MustPossibleCPU()
	var chunks []ebpf.MapKV
	for i := range uint32(2) {
		values := make([]serviceStat1, cpus)
		values[cpus-1] = serviceStat1{Connections: uint64(i) + 7, Refused: 5}
		chunk := pinned(t, filepath.Join(dir, fmt.Sprintf("chunk%d", i)), outer.InnerMap, ebpf.MapKV{Key: uint32(4095), Value: values})
		chunks = append(chunks, ebpf.MapKV{Key: i, Value: chunk})
	}
	pinned(t, filepath.Join(dir, bpf.SockMapBlServiceStat), outer, chunks...)

	m := load(t, dir, small)
	if !m.Resized() || !slices.Equal(m.Converted(), []string{bpf.SockMapBlServiceStat}) {
		t.Errorf("converted %q, resized: %v", m.Converted(), m.Resized())
	}
	for i := range uint32(2) {
		chunk, err := Chunk(m.BlServiceStat, i)
		must(t, err)
		var got []bpf.SockBlServiceStatEntry
		must(t, chunk.Lookup(uint32(4095), &got), chunk.Close())
		if want := (bpf.SockBlServiceStatEntry{Connections: uint64(i) + 7, Refused: 5}); got[cpus-1] != want {
			t.Errorf("chunk %d: %+v, want %+v", i, got[cpus-1], want)
		}
	}
	must(t, m.Pin(dir), m.RemoveOtherLayouts(dir))
	if !slices.Contains(listPins(t, dir), bpf.SockMapBlServiceStat) {
		t.Error("the former map is gone before its entries have been moved")
	}
	_, err = m.Move()
	must(t, err, m.RemoveOtherLayouts(dir))
	if list := listPins(t, dir); slices.Contains(list, bpf.SockMapBlServiceStat) || !slices.Contains(list, "bl_service_stat-2") {
		t.Errorf("pinned are %q", list)
	}
}

// another gives a map a second layout until the test ends.
func another(t *testing.T, name string, convert converter) {
	t.Helper()
	if _, ok := layouts[name]; ok {
		t.Fatalf("%s has had another layout", name)
	}
	layouts[name] = layout{2, map[int]converter{1: convert}}
	t.Cleanup(func() { delete(layouts, name) })
}

// formerAffinity is a layout that bl_affinity might have had.
type formerAffinity struct {
	Backend, Generation uint32
}

func affinity(backend, generation uint32, used uint64) bpf.SockBlAffinityEntry {
	e := bpf.SockBlAffinityEntry{LastUsed: used}
	e.Backend.Id, e.Backend.Generation = backend, generation
	return e
}

// TestFormerLRU moves an LRU table of a former layout, in the same size and another one, what
// programs add to it meanwhile as well, but nothing in place of what the present one has.
func TestFormerLRU(t *testing.T) {
	needRoot(t)
	specs, err := mapSpecs(small)
	must(t, err)
	another(t, bpf.SockMapBlAffinity, convertEach[bpf.SockBlAffinityKey](func(v formerAffinity) bpf.SockBlAffinityEntry {
		return affinity(v.Backend, v.Generation, 1)
	}))
	key := func(i int) bpf.SockBlAffinityKey { return bpf.SockBlAffinityKey{Service: uint32(i)} }
	for _, size := range []uint32{small.Affinity, 2 * small.Affinity} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			dir := bpffs.New(t)
			spec := specs[bpf.SockMapBlAffinity].Copy()
			spec.Value, spec.ValueSize, spec.MaxEntries = nil, 8, size
			former := pinned(t, filepath.Join(dir, bpf.SockMapBlAffinity), spec, ebpf.MapKV{Key: key(1), Value: formerAffinity{1, 10}})
			m := load(t, dir, small)
			must(t,
				former.Put(key(1), formerAffinity{3, 30}),
				former.Put(key(2), formerAffinity{2, 20}),
				m.BlAffinity.Put(key(3), affinity(4, 0, 5)),
				former.Put(key(3), formerAffinity{9, 90}),
			)
			_, err := m.Move()
			must(t, err, m.Pin(dir), m.RemoveOtherLayouts(dir))
			got := make(map[uint32]bpf.SockBlAffinityEntry)
			must(t, Each(m.BlAffinity, func(k *bpf.SockBlAffinityKey, v *bpf.SockBlAffinityEntry) { got[k.Service] = *v }))
			want := map[uint32]bpf.SockBlAffinityEntry{
				1: affinity(1, 10, 1), 2: affinity(2, 20, 1), 3: affinity(4, 0, 5),
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
			if list := listPins(t, dir); slices.Contains(list, bpf.SockMapBlAffinity) || !slices.Contains(list, "bl_affinity-2") {
				t.Errorf("pinned are %q", list)
			}
		})
	}
}

// TestFormerBesidePresent: where an agent was killed before it had removed a former LRU table, the next
// one uses that of the present layout, and adds what only the former one has.
func TestFormerBesidePresent(t *testing.T) {
	needRoot(t)
	dir := bpffs.New(t)
	specs, err := mapSpecs(small)
	must(t, err)
	another(t, bpf.SockMapBlAffinity, convertEach[bpf.SockBlAffinityKey](func(v formerAffinity) bpf.SockBlAffinityEntry {
		return affinity(v.Backend, 0, 0)
	}))
	first := load(t, dir, small)
	key := func(i int) bpf.SockBlAffinityKey { return bpf.SockBlAffinityKey{Service: uint32(i)} }
	must(t, first.BlAffinity.Put(key(1), affinity(1, 0, 0)), first.Pin(dir))
	spec := specs[bpf.SockMapBlAffinity].Copy()
	spec.Value, spec.ValueSize = nil, 8
	pinned(t, filepath.Join(dir, bpf.SockMapBlAffinity), spec,
		ebpf.MapKV{Key: key(1), Value: formerAffinity{5, 0}}, ebpf.MapKV{Key: key(2), Value: formerAffinity{2, 0}})

	m := load(t, dir, small)
	for i, want := range map[int]uint32{1: 1, 2: 2} {
		var entry bpf.SockBlAffinityEntry
		if err := m.BlAffinity.Lookup(key(i), &entry); err != nil || entry.Backend.Id != want {
			t.Errorf("client %d has %+v, %v, want %d", i, entry, err, want)
		}
	}
}

// TestNewerLayouts: figures of a newer version are left behind; where it has other tables, an agent
// refuses to start and names them, and neither reads nor changes anything.
func TestNewerLayouts(t *testing.T) {
	needRoot(t)
	dir := bpffs.New(t)
	any := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 128, MaxEntries: 1}
	pinned(t, filepath.Join(dir, "bl_service_stat-3"), any)
	m := load(t, dir, small)
	must(t, m.Pin(dir), m.RemoveOtherLayouts(dir))
	before := listPins(t, dir)
	if !slices.Contains(before, "bl_service_stat-2") || slices.Contains(before, "bl_service_stat-3") {
		t.Errorf("pinned are %q", before)
	}

	must(t, os.Rename(filepath.Join(dir, "bl_flow"), filepath.Join(dir, "bl_flow-2")), os.Remove(filepath.Join(dir, "bl_service_stat-2")))
	before = listPins(t, dir)
	_, err := Load(dir, small)
	if !errors.Is(err, ErrOtherVersion) || !strings.Contains(err.Error(), "bl_flow-2") {
		t.Errorf("got %v", err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrOtherVersion) || !strings.Contains(err.Error(), "bl_flow") {
		t.Errorf("reading: got %v", err)
	}
	if after := listPins(t, dir); !slices.Equal(after, before) {
		t.Errorf("pinned were %q and are %q", before, after)
	}
}

// TestReadOtherLayouts: a reader finds what has the present layout as it is, what has a former one in
// a copy, and nothing in place of the rest, which it names. It changes nothing.
func TestReadOtherLayouts(t *testing.T) {
	needRoot(t)
	dir := bpffs.New(t)
	m := load(t, dir, small)
	client := bpf.SockBlAffinityKey{Service: 7}
	must(t, m.BlAffinity.Put(client, affinity(1, 2, 3)), m.Pin(dir))
	for pin, renamed := range map[string]string{"bl_flow": "bl_flow-2", "bl_node": "bl_node-3", "bl_backend": "bl_backend-2"} {
		must(t, os.Rename(filepath.Join(dir, pin), filepath.Join(dir, renamed)))
	}
	for _, pin := range []string{"bl_srcrange", "bl_agent", "bl_counter", "bl_service_stat-2"} {
		must(t, os.Remove(filepath.Join(dir, pin)))
	}
	outer := m.specs[bpf.SockMapBlServiceStat].Copy()
	outer.InnerMap.ValueSize, outer.InnerMap.Value = 16, nil
	values := make([]serviceStat1, ebpf.MustPossibleCPU())
	values[0].Connections = 9
	chunk := pinned(t, filepath.Join(dir, "chunk"), outer.InnerMap, ebpf.MapKV{Key: uint32(5), Value: values})
	pinned(t, filepath.Join(dir, bpf.SockMapBlServiceStat), outer, ebpf.MapKV{Key: uint32(0), Value: chunk})
	counter := m.specs[bpf.SockMapBlCounter].Copy()
	counter.MaxEntries = 3
	pinned(t, filepath.Join(dir, bpf.SockMapBlCounter), counter, ebpf.MapKV{Key: uint32(2), Value: make([]uint64, ebpf.MustPossibleCPU())})
	pinned(t, filepath.Join(dir, bpf.SockMapBlAgent), &ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: m.specs[bpf.SockMapBlAgent].ValueSize + 8, MaxEntries: 1, Flags: m.specs[bpf.SockMapBlAgent].Flags,
	})
	before := listPins(t, dir)

	reader, err := OpenReadable(dir)
	must(t, err)
	defer reader.Close()
	var found []string
	for _, o := range reader.OtherLayouts() {
		found = append(found, fmt.Sprintf("%s %v", o.Map, o.Read))
		if o.Why == "" {
			t.Errorf("%s: no reason", o.Map)
		}
	}
	want := []string{"bl_agent false", "bl_backend false", "bl_flow false", "bl_node false", "bl_service_stat true", "bl_srcrange false"}
	if !slices.Equal(found, want) {
		t.Errorf("other layouts %q, want %q", found, want)
	}
	var entry bpf.SockBlAffinityEntry
	if err := reader.BlAffinity.Lookup(client, &entry); err != nil || entry != affinity(1, 2, 3) {
		t.Errorf("a table of the same layout has %+v, %v", entry, err)
	}
	copied, err := Chunk(reader.BlServiceStat, 0)
	must(t, err)
	var got []bpf.SockBlServiceStatEntry
	must(t, copied.Lookup(uint32(5), &got), copied.Close())
	if got[0].Connections != 9 {
		t.Errorf("one of a former layout has %+v", got)
	}
	if reader.Backend.Len() != 0 || reader.Entries.Node[1] != (bpf.SockBlNodeEntry{}) || reader.Entries.Agent.Pid != 0 {
		t.Error("one that cannot be read is not empty")
	}
	if n, err := reader.Counter(bpf.SockBlReason(counter.MaxEntries)); n != 0 || err != nil {
		t.Errorf("a counter that the other version has not: %d, %v", n, err)
	}
	if after := listPins(t, dir); !slices.Equal(after, before) {
		t.Errorf("pinned were %q and are %q", before, after)
	}
	if _, err := Open(dir); !errors.Is(err, ErrOtherVersion) {
		t.Errorf("all as this version has it: %v", err)
	}
}
