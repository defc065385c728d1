package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// DirectValues lets the programs of an object address the values of arrays of one entry, to
// which they refer by bl_value of bpf/include/beeline/maps.h. It comes before the maps get their sizes.
func DirectValues(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		for i := range p.Instructions {
			ins := &p.Instructions[i]
			if !ins.IsLoadFromMap() || ins.Src != asm.PseudoMapFD {
				continue
			}
			if m := spec.Maps[ins.Reference()]; m != nil && m.Type == ebpf.Array && m.MaxEntries == 1 {
				ins.Src, ins.Constant = asm.PseudoMapValue, 0
			}
		}
	}
}
