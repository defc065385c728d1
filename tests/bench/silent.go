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

// silent is the cgroup of programs without events.
const silent = "silent"

// attachSilent attaches Beeline's programs for connect() to a cgroup, over the maps, without the branch
// that asks whether anybody listens.
func attachSilent(m *bpfmap.Maps, c datapath.Constants, cgroup string) error {
	spec, options, err := datapath.SocketSpec(m, c)
	if err != nil {
		return err
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool {
		return name != bpf.SockProgBlConnect4 && name != bpf.SockProgBlConnect6
	})
	for name, p := range spec.Programs {
		if silence(p.Instructions) == 0 {
			return fmt.Errorf("program %s does not ask whether anybody listens", name)
		}
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, *options)
	if err != nil {
		return fmt.Errorf("load programs without events: %w", err)
	}
	keep = append(keep, coll)
	for name, p := range coll.Programs {
		hook, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: spec.Programs[name].AttachType, Program: p})
		if err != nil {
			return fmt.Errorf("attach %s without events: %w", name, err)
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
