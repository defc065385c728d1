package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/rtnl"
	"github.com/beeline-lb/beeline/pkg/setting"
)

// cleanupFilters removes our filters from all devices, and the qdiscs that the maps pinned below bpffs
// say are ours. It returns what it removed. One odd device keeps it from no other. Filters of programs that
// serve with another BPF file system stay: without a map of ours below bpffs that is an error, for it may
// have been meant.
func cleanupFilters(bpffs string) (removed []string, err error) {
	devices, err := rtnl.Links()
	errs := []error{err}
	programs, err := filterPrograms(devices)
	errs = append(errs, err)
	pinned, err := pinnedMaps(bpffs)
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	removable, err := programsOf(programs, pinned)
	if err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	ownQdisc, err := ownQdiscs(Dir(bpffs))
	errs = append(errs, err)
	var left []string
	for _, l := range devices {
		found, kept, err := detachFiltersOf(l, ownQdisc[l.Attrs().Index], func(program uint32) bool { return removable[program] })
		if found {
			removed = append(removed, "filters of "+l.Attrs().Name)
		}
		if kept {
			left = append(left, l.Attrs().Name)
		}
		if err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	switch {
	case len(left) > 0 && len(pinned) == 0:
		errs = append(errs, setting.Errorf("bpffs", "nothing of Beeline is pinned below %s, and the filters of %s serve with the maps of another BPF file system: give that of their agent",
			bpffs, strings.Join(left, ", ")))
	case len(left) > 0:
		klog.InfoS("Filters of devices stay, they serve with the maps of another bpffs", "devices", left)
	}
	return removed, errors.Join(errs...)
}

// filterPrograms returns the ids of the programs of our filters.
func filterPrograms(devices []netlink.Link) (ids map[uint32]bool, err error) {
	ids = make(map[uint32]bool)
	var errs []error
	for _, l := range devices {
		for _, d := range directions {
			filters, err := rtnl.Filters(l, d.parent)
			if err != nil && !gone(err) {
				errs = append(errs, err)
			}
			for _, f := range filters {
				if d.owns(f) {
					ids[programOf(f)] = true
				}
			}
		}
	}
	return ids, errors.Join(errs...)
}

// programOf returns the id of the program of a filter of ours.
func programOf(f netlink.Filter) uint32 { return uint32(f.(*netlink.BpfFilter).Id) }

// programsOf returns which of the programs of filters are those of the pinned maps, or of nobody: as long as
// a node serves, with an agent or without one, links run programs for sockets that share maps with those
// of its filters. The links are to be looked at after the filters, for agents make them before.
func programsOf(programs map[uint32]bool, pinned map[ebpf.MapID]bool) (removable map[uint32]bool, err error) {
	removable = make(map[uint32]bool)
	var linked map[ebpf.MapID]bool
	for id := range programs {
		maps, err := mapsOf(ebpf.ProgramID(id))
		if errors.Is(err, os.ErrNotExist) {
			continue // the filter is gone
		}
		if err != nil {
			return nil, err
		}
		removable[id] = anyOf(maps, pinned)
		if removable[id] {
			continue
		}
		if linked == nil {
			if linked, err = linkedMaps(); err != nil {
				return nil, err
			}
		}
		removable[id] = !anyOf(maps, linked)
	}
	return removable, nil
}

func anyOf(maps []ebpf.MapID, among map[ebpf.MapID]bool) bool {
	return slices.ContainsFunc(maps, func(id ebpf.MapID) bool { return among[id] })
}

// mapsOf returns the ids of the maps that a program uses.
func mapsOf(id ebpf.ProgramID) ([]ebpf.MapID, error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, fmt.Errorf("open program %d: %w", id, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return nil, fmt.Errorf("look at program %d: %w", id, err)
	}
	maps, _ := info.MapIDs()
	return maps, nil
}

// pinnedMaps returns the ids of the maps that are pinned with ours below a BPF file system.
func pinnedMaps(bpffs string) (map[ebpf.MapID]bool, error) {
	paths, err := filepath.Glob(filepath.Join(root(bpffs), "*", "*"))
	if err != nil {
		return nil, err
	}
	pinned := make(map[ebpf.MapID]bool)
	for _, path := range paths {
		if strings.HasPrefix(filepath.Base(path), linkPrefix) {
			continue
		}
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			return nil, fmt.Errorf("open pin %s: %w", path, err)
		}
		info, err := m.Info()
		if err = errors.Join(err, m.Close()); err != nil {
			return nil, fmt.Errorf("look at the map %s: %w", path, err)
		}
		if id, known := info.ID(); known {
			pinned[id] = true
		}
	}
	return pinned, nil
}

// linkedMaps returns the ids of the maps of all programs that links run.
func linkedMaps() (map[ebpf.MapID]bool, error) {
	programs, err := linkedPrograms()
	if err != nil {
		return nil, err
	}
	linked := make(map[ebpf.MapID]bool)
	for id := range programs {
		maps, err := mapsOf(id)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, m := range maps {
			linked[m] = true
		}
	}
	return linked, nil
}

func linkedPrograms() (map[ebpf.ProgramID]bool, error) {
	programs := make(map[ebpf.ProgramID]bool)
	var links link.Iterator
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err != nil {
			return nil, fmt.Errorf("look at link %d: %w", links.ID, err)
		}
		programs[info.Program] = true
	}
	if err := links.Err(); err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return programs, nil
}

// ownQdiscs returns the indexes of the devices whose qdisc is ours, as the maps in dir say.
func ownQdiscs(dir string) (own map[int]bool, err error) {
	maps, err := bpfmap.OpenReadable(dir)
	if err != nil {
		return nil, nil // none, or those of another version
	}
	defer maps.Close()
	devices, err := devicemap.New(maps).List()
	own = make(map[int]bool)
	for _, d := range devices {
		own[d.Ifindex] = d.OwnQdisc
	}
	return own, err
}
