package main

import (
	"fmt"
	"maps"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
)

// The programs that are compared, by the cgroups that they are attached to.
const (
	silent  = "silent"  // without events
	telling = "telling" // as they are shipped
)

// copies is how often each of them is loaded. Where the kernel puts a program's code decides over some
// 20 ns of a connect(), more than events cost: two copies of one program differ by that.
const copies = 4

// copyOf names the cgroup of a copy.
func copyOf(group string, i int) string { return fmt.Sprintf("%s-%d", group, i) }

// ofEvents returns what events cost: how much longer the copies with them take than those without. The names of
// the contestants are those of the copies behind prefix.
func ofEvents(m measured, prefix string) float64 {
	sum := 0.0
	for i := range copies {
		sum += m[prefix+copyOf(telling, i)] - m[prefix+copyOf(silent, i)]
	}
	return sum / copies
}

// attachCopies makes the cgroups of all copies, and attaches them.
func attachCopies(box *sandbox, m *bpfmap.Maps, c datapath.Constants, groups map[string]string) error {
	for i := range copies {
		for _, group := range []string{silent, telling} {
			name := copyOf(group, i)
			cgroup, err := box.subgroup(name)
			if err != nil {
				return err
			}
			groups[name] = cgroup
			if err := attachCopy(m, c, cgroup, group == silent); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// attachCopy attaches Beeline's programs for connect() to a cgroup, over the maps.
func attachCopy(m *bpfmap.Maps, c datapath.Constants, cgroup string, silenced bool) error {
	programs, err := loadCopy(m, c, bpf.LoadSock, silenced, bpf.SockProgBlConnect4, bpf.SockProgBlConnect6)
	if err != nil {
		return err
	}
	for name, attach := range map[string]ebpf.AttachType{
		bpf.SockProgBlConnect4: ebpf.AttachCGroupInet4Connect, bpf.SockProgBlConnect6: ebpf.AttachCGroupInet6Connect,
	} {
		hook, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: attach, Program: programs[name]})
		if err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		keep = append(keep, hook)
	}
	return nil
}

// loadCopy loads programs of an object over the maps; silenced ones are without the branch that asks whether
// anybody listens.
func loadCopy(m *bpfmap.Maps, c datapath.Constants, read func() (*ebpf.CollectionSpec, error), silenced bool, names ...string) (map[string]*ebpf.Program, error) {
	spec, options, err := datapath.Spec(m, c, read)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, name) })
	for name, p := range spec.Programs {
		if silenced && silence(p.Instructions) == 0 {
			return nil, fmt.Errorf("program %s does not ask whether anybody listens", name)
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, *options)
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	keep = append(keep, coll)
	return coll.Programs, nil
}

// silence has each look at who listens find nobody, so that the verifier removes what would follow. It
// returns how many there are.
func silence(code asm.Instructions) (looks int) {
	const listening = int16(unsafe.Offsetof(bpf.SockBlMonitorEntry{}.Listening))
	var at asm.Register // has the address of bl_monitor's value
	known := false
	for i := range code {
		ins := &code[i]
		switch {
		case ins.IsLoadFromMap() && ins.Reference() == bpf.SockMapBlMonitor:
			at, known = ins.Dst, true
			continue
		case !known || ins.OpCode.Class() != asm.LdXClass:
			continue
		case ins.Src == at && ins.Offset == listening:
			none := asm.Mov.Imm(ins.Dst, 0)
			none.Metadata = ins.Metadata
			*ins = none
			looks++
		}
		known = false // what is read next is somebody else's
	}
	return looks
}
