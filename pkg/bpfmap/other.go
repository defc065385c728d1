package bpfmap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// OtherLayout is a map that another version has pinned in a layout that is not this version's.
type OtherLayout struct {
	Map string
	Why string // what is pinned in its place
	// Read says that what the map holds can be read, in a copy; else an empty map is in its place.
	Read bool
}

// OtherLayouts returns the maps that [OpenReadable] has found in another layout, by name. What is
// written to them reaches no program.
func (m *Maps) OtherLayouts() []OtherLayout { return m.others }

// openMap opens a pinned map for reading. In place of one of another layout it makes a copy in the
// present one, or an empty one where it cannot.
func (m *Maps) openMap(dir, name string, pinned pins, other func(OtherLayout) error) error {
	opened, why, err := m.openPresent(filepath.Join(dir, PinName(name)), name)
	if err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	if why == "" {
		m.all[name] = opened
		return nil
	}
	former := 0
	if numbers := pinned[name]; len(numbers) > 0 && !slices.Contains(numbers, numberOf(name)) {
		why = fmt.Sprintf("layout %d of it, this one has %d", slices.Max(numbers), numberOf(name))
		former = pinned.former(name)
	}
	o := OtherLayout{name, why, former != 0}
	if err := other(o); err != nil {
		return err
	}
	m.others = append(m.others, o)
	if o.Read {
		m.all[name], err = m.loadLayout(dir, name, former)
	} else {
		m.all[name], err = ebpf.NewMap(placeholder(m.specs[name]))
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	return nil
}

// openPresent opens the pinned map of the present layout, or says why there is none.
func (m *Maps) openPresent(path, name string) (opened *ebpf.Map, why string, err error) {
	opened, err = ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, "no such map", nil
	}
	if err != nil {
		return nil, "", err
	}
	spec := m.specs[name]
	like := spec.Copy()
	like.MaxEntries = opened.MaxEntries()
	err = like.Compatible(opened)
	if err == nil && spec.Flags&unix.BPF_F_MMAPABLE != 0 && opened.MaxEntries() < spec.MaxEntries {
		err = fmt.Errorf("%d entries, this one has %d", opened.MaxEntries(), spec.MaxEntries)
	}
	if err != nil {
		return nil, err.Error(), opened.Close()
	}
	return opened, "", nil
}

// placeholder returns the definition of an empty map that takes little memory.
func placeholder(spec *ebpf.MapSpec) *ebpf.MapSpec {
	small := spec.Copy()
	switch spec.Type {
	case ebpf.LRUHash:
		small.MaxEntries = LeastLRU()
	case ebpf.Hash, ebpf.PerCPUHash, ebpf.LPMTrie, ebpf.ArrayOfMaps:
		small.MaxEntries = 1
	}
	return small
}
