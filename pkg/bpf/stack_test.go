package bpf_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// loads read each object with programs.
var loads = []func() (*ebpf.CollectionSpec, error){bpf.LoadSock, bpf.LoadTc, bpf.LoadXdp, bpf.LoadExplainSocket, bpf.LoadExplainPacket}

// TestStack: what the functions of a chain of calls have on the stack fits into the kernel's
// 512 bytes where each takes whole pieces of 32 bytes: in older kernels, and without the JIT. A
// newer kernel with the JIT rounds to 16 bytes, and loads programs that the others refuse.
func TestStack(t *testing.T) {
	const most, piece = 512, 32
	for _, load := range loads {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for name, program := range spec.Programs {
			functions := functionsOf(program)
			var deepest func(name string) (int, []string)
			deepest = func(name string) (int, []string) {
				f := functions[name]
				if f == nil {
					t.Fatalf("%s: no function %s", program.Name, name)
				}
				depth, chain := 0, []string(nil)
				for _, callee := range f.calls {
					if d, c := deepest(callee); d > depth {
						depth, chain = d, c
					}
				}
				return depth + max(1, (f.stack+piece-1)/piece)*piece, append([]string{name}, chain...)
			}
			depth, chain := deepest(name)
			if depth > most {
				t.Errorf("%s: %d bytes of stack, want at most %d: %s", name, depth, most, strings.Join(chain, " > "))
			}
			t.Logf("%s: %d: %s", name, depth, strings.Join(chain, " > "))
		}
	}
}

// function is a function of a program.
type function struct {
	stack int // bytes
	calls []string
}

// functionsOf returns the functions of a program by their names.
func functionsOf(program *ebpf.ProgramSpec) map[string]*function {
	all := map[string]*function{}
	var f *function
	pointers := map[asm.Register]bool{} // copies of the frame pointer
	for i := range program.Instructions {
		ins := &program.Instructions[i]
		if start := btf.FuncMetadata(ins); start != nil {
			f = &function{}
			all[start.Name] = f
			clear(pointers)
		}
		op := ins.OpCode
		switch {
		case ins.IsFunctionReference():
			if !slices.Contains(f.calls, ins.Reference()) {
				f.calls = append(f.calls, ins.Reference())
			}
		case op.Class().IsLoad() && ins.Src == asm.RFP, op.Class().IsStore() && ins.Dst == asm.RFP:
			f.stack = max(f.stack, -int(ins.Offset))
		case op.Class().IsALU():
			if op.ALUOp() == asm.Add && op.Source() == asm.ImmSource && pointers[ins.Dst] {
				f.stack = max(f.stack, -int(ins.Constant))
			}
			pointers[ins.Dst] = op.ALUOp() == asm.Mov && op.Source() == asm.RegSource && ins.Src == asm.RFP
		}
	}
	return all
}
