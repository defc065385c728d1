package main

import (
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// silent is the cgroup of programs without events.
const silent = "silent"

// attachSilent attaches Beeline's programs for connect() to a cgroup, over the maps, without the branch
// that asks whether anybody listens.
func attachSilent(m *bpfmap.Maps, cgroup string) error {
	spec, err := bpf.LoadSock()
	if err != nil {
		return err
	}
	replaced := m.Replacements()
	maps.DeleteFunc(replaced, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil })
	for name, kernelMap := range replaced {
		spec.Maps[name].MaxEntries = kernelMap.MaxEntries()
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool {
		return name != bpf.SockProgBlConnect4 && name != bpf.SockProgBlConnect6
	})
	for name, p := range spec.Programs {
		if silence(p.Instructions) == 0 {
			return fmt.Errorf("program %s does not ask whether anybody listens", name)
		}
	}
	programs, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replaced})
	if err != nil {
		return fmt.Errorf("load programs without events: %w", err)
	}
	keep = append(keep, programs)
	var errs []error
	for _, p := range programs.Programs {
		info, err := p.Info()
		if err != nil {
			return err
		}
		at := ebpf.AttachCGroupInet4Connect
		if info.Name == bpf.SockProgBlConnect6 {
			at = ebpf.AttachCGroupInet6Connect
		}
		hook, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: at, Program: p})
		keep = append(keep, hook)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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
