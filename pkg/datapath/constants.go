package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// ErrNotAttached says that no program runs whose constants could be read.
var ErrNotAttached = errors.New("no program is attached")

// SocketConstants returns the constants with which the programs for sockets run, by the names of
// their variables, as they lie in memory. The error is [ErrNotAttached] when none runs.
func SocketConstants(bpffs string) (map[string][]byte, error) {
	for _, h := range hooks {
		info, err := pinnedInfo(h.pin(Dir(bpffs)))
		if err != nil {
			return nil, err
		}
		if info == nil {
			continue
		}
		// A program without constants says nothing of those of the others.
		if constants, err := constantsOf(info.Program); err != nil || len(constants) > 0 {
			return constants, err
		}
	}
	return nil, fmt.Errorf("%w to a cgroup", ErrNotAttached)
}

// SocketHook reports whether the program with this name is attached to a cgroup.
func SocketHook(bpffs, program string) (bool, error) {
	info, err := pinnedInfo(hook{program: program}.pin(Dir(bpffs)))
	if err != nil || info == nil {
		return false, err
	}
	at := info.Cgroup()
	return at != nil && at.CgroupId != 0, nil
}

// DeviceConstants is [SocketConstants] of the programs for packets of devices. It has to be called
// in the network namespace of the devices.
func DeviceConstants(bpffs string) (map[string][]byte, error) {
	pins, err := filepath.Glob(filepath.Join(Dir(bpffs), tcxPrefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, pin := range pins {
		info, err := pinnedInfo(pin)
		if err != nil {
			return nil, err
		}
		if info != nil && info.TCX() != nil && info.TCX().Ifindex != 0 {
			return constantsOf(info.Program)
		}
	}
	return filterConstants()
}

// filterConstants is [DeviceConstants] where programs are filters of devices.
func filterConstants() (map[string][]byte, error) {
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		for _, at := range directions {
			filters, err := rtnl.Filters(l, at.parent)
			if err != nil {
				continue // the device is gone, or has no such qdisc
			}
			for _, f := range filters {
				if own, ok := f.(*netlink.BpfFilter); ok && at.owns(f) {
					return constantsOf(ebpf.ProgramID(own.Id))
				}
			}
		}
	}
	return nil, fmt.Errorf("%w to a device", ErrNotAttached)
}

// constantsOf returns the variables of a running program that nobody can change.
func constantsOf(id ebpf.ProgramID) (map[string][]byte, error) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, fmt.Errorf("open the program %d: %w", id, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return nil, fmt.Errorf("look at the program %d: %w", id, err)
	}
	constants := make(map[string][]byte)
	ids, _ := info.MapIDs()
	for _, id := range ids {
		if err := addConstants(constants, id); err != nil {
			return nil, fmt.Errorf("constants of program %s: %w", info.Name, err)
		}
	}
	return constants, nil
}

// addConstants adds the variables of a map, if it is one of constants.
func addConstants(constants map[string][]byte, id ebpf.MapID) error {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return err
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return err
	}
	types, known := info.BTFID()
	if !info.Frozen() || !known {
		return nil
	}
	handle, err := btf.NewHandleFromID(types)
	if err != nil {
		return err
	}
	defer handle.Close()
	spec, err := handle.Spec(nil)
	if err != nil {
		return err
	}
	var section *btf.Datasec
	if err := spec.TypeByName(".rodata", &section); err != nil {
		return nil // another kind of map
	}
	value, err := m.LookupBytes(uint32(0))
	if err != nil {
		return err
	}
	for _, v := range section.Vars {
		if end := v.Offset + v.Size; int(end) <= len(value) {
			constants[v.Type.TypeName()] = value[v.Offset:end]
		}
	}
	return nil
}

// ForwardMark returns the mark that the programs give packets that come in by a device and go up the
// host's stack, translated; 0 is none. It has to be called where [DeviceConstants] has.
func ForwardMark(bpffs string) (uint32, error) {
	constants, err := DeviceConstants(bpffs)
	value := constants[bpf.TcVarBlForwardMark]
	if err != nil || len(value) < 4 {
		return 0, err
	}
	return binary.NativeEndian.Uint32(value), nil
}

// HostSocketsOnly reports whether the programs for sockets leave those of other network
// namespaces than the node's alone.
func HostSocketsOnly(bpffs string) (bool, error) {
	constants, err := SocketConstants(bpffs)
	if errors.Is(err, ErrNotAttached) {
		return true, nil
	}
	value := constants[bpf.SockVarBlHostSocketsOnly]
	return len(value) > 0 && value[0] != 0, err
}
