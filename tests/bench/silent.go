package main

import (
	"fmt"
	"maps"

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

// attachCopy attaches Beeline's programs for connect() to a cgroup, over the maps; silenced ones are
// without the branch that asks whether anybody listens.
func attachCopy(m *bpfmap.Maps, c datapath.Constants, cgroup string, silenced bool) error {
	spec, options, err := datapath.SocketSpec(m, c)
	if err != nil {
		return err
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool {
		return name != bpf.SockProgBlConnect4 && name != bpf.SockProgBlConnect6
	})
	for name, p := range spec.Programs {
		if silenced && silence(p.Instructions) == 0 {
			return fmt.Errorf("program %s does not ask whether anybody listens", name)
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, *options)
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	keep = append(keep, coll)
	for name, p := range coll.Programs {
		hook, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: spec.Programs[name].AttachType, Program: p})
		if err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		keep = append(keep, hook)
	}
	return nil
}

// silence has each look into bl_monitor find nothing, so that the verifier removes what would follow. It
// returns how many there are.
func silence(code asm.Instructions) (looks int) {
	for i := range code {
		if code[i].Reference() != bpf.SockMapBlMonitor {
			continue
		}
		for j := i + 1; j < len(code); j++ {
			if code[j].IsBuiltinCall() && code[j].Constant == int64(asm.FnMapLookupElem) {
				none := asm.Mov.Imm(asm.R0, 0)
				none.Metadata = code[j].Metadata
				code[j] = none
				looks++
				break
			}
		}
	}
	return looks
}
