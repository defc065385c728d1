package bpf_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// TestDirectValues: programs address the value of each array of one entry that they use, and refer to
// other maps as before.
func TestDirectValues(t *testing.T) {
	for _, load := range loads {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		bpf.DirectValues(spec)
		values, pointers := 0, 0
		for name, p := range spec.Programs {
			for _, ins := range p.Instructions {
				m := spec.Maps[ins.Reference()]
				if m == nil || !ins.IsLoadFromMap() || m.Name[0] == '.' {
					continue
				}
				one := m.Type == ebpf.Array && m.MaxEntries == 1
				switch {
				case one && ins.Src == asm.PseudoMapValue:
					values++
				case !one && ins.Src == asm.PseudoMapFD:
					pointers++
				default:
					t.Errorf("%s refers to map %s of %d entries by %v", name, m.Name, m.MaxEntries, ins)
				}
			}
		}
		if values == 0 || pointers == 0 {
			t.Errorf("programs refer to %d values and %d maps", values, pointers)
		}
	}
}
