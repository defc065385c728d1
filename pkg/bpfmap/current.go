package bpfmap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// Current reports whether the maps that are pinned in dir are these, and have grown no further: a
// table that was opened for reading has the chunks that there were then, and an agent that is started
// with other sizes replaces maps. A former flow table that is not pinned any more is done with.
func (m *Maps) Current(dir string) (bool, error) {
	for name, kernelMap := range m.all {
		same, err := samePin(filepath.Join(dir, PinName(name)), kernelMap)
		if err != nil || !same {
			return false, err
		}
	}
	if former := m.FormerFlow(); former != nil {
		if same, err := samePin(formerFlowPin(dir), former); err != nil || !same {
			return false, err
		}
	}
	for _, t := range []interface{ grown() (bool, error) }{m.Service, m.ServiceName, m.Backend, m.Slot, m.Active, m.Outlier} {
		if grown, err := t.grown(); err != nil || grown {
			return false, err
		}
	}
	return true, nil
}

// grown reports whether there are more chunks than are mapped.
func (t *Table[T]) grown() (bool, error) {
	var id uint32
	err := t.outer.Lookup(uint32(len(t.chunks())), &id)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}

// monitorMaps are those of who listens to events.
var monitorMaps = []string{bpf.SockMapBlMonitor, bpf.SockMapBlMonitorCpu, bpf.SockMapBlMonitorRing}

// OnlyMonitor returns the maps of who listens to events, the others being nil: who holds these
// keeps none in the kernel that is replaced meanwhile.
func (m *Maps) OnlyMonitor() (*Maps, error) {
	o := &Maps{all: make(map[string]*ebpf.Map)}
	for _, name := range monitorMaps {
		kernelMap, err := m.all[name].Clone()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("map %s: %w", name, err), o.Close())
		}
		o.all[name] = kernelMap
	}
	o.BlMonitor, o.BlMonitorCpu, o.BlMonitorRing = o.all[bpf.SockMapBlMonitor], o.all[bpf.SockMapBlMonitorCpu], o.all[bpf.SockMapBlMonitorRing]
	if err := mapEntry(o, &o.Entries.Monitor, o.BlMonitor, false); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// SharesMonitor reports whether others are the same maps of those who listen to events.
func (m *Maps) SharesMonitor(others *Maps) (bool, error) {
	for _, name := range monitorMaps {
		if same, err := sameMap(m.all[name], others.all[name]); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// samePin reports whether path is a pin of that map.
func samePin(path string, kernelMap *ebpf.Map) (bool, error) {
	pinned, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pin %s: %w", path, err)
	}
	defer pinned.Close()
	return sameMap(pinned, kernelMap)
}

// sameMap reports whether both are descriptors of one map.
func sameMap(a, b *ebpf.Map) (bool, error) {
	var ids [2]ebpf.MapID
	for i, of := range []*ebpf.Map{a, b} {
		info, err := of.Info()
		if err != nil {
			return false, err
		}
		ids[i], _ = info.ID()
	}
	return ids[0] == ids[1], nil
}
