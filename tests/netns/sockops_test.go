package netns_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
)

// closeCounter is a program of somebody else that has the kernel tell it of the states of each connection (sockops), and
// counts those that end.
type closeCounter struct {
	name  string
	count *ebpf.Map
}

// countCloses attaches one to a host's cgroup until the test ends.
func countCloses(t *testing.T, h *lab.Host, name string) closeCounter {
	t.Helper()
	count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { count.Close() })
	const (
		connect, state = 3, 10        // BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_SOCK_OPS_STATE_CB
		stateFlag      = 1 << 2       // BPF_SOCK_OPS_STATE_CB_FLAG
		closed         = 7            // BPF_TCP_CLOSE
		op, to, flags  = 0, 4 + 4, 84 // fields of struct bpf_sock_ops; the second argument is the new state
	)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, op, asm.Word),
		asm.JEq.Imm(asm.R2, state, "state"),
		asm.JNE.Imm(asm.R2, connect, "exit"),
		asm.LoadMem(asm.R2, asm.R1, flags, asm.Word),
		asm.Or.Imm(asm.R2, stateFlag),
		asm.FnSockOpsCbFlagsSet.Call(),
		asm.Ja.Label("exit"),
		asm.LoadMem(asm.R2, asm.R1, to, asm.Word).WithSymbol("state"),
		asm.JNE.Imm(asm.R2, closed, "exit"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, count.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("exit"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	hook, err := link.AttachCgroup(link.CgroupOptions{Path: h.Cgroup, Attach: ebpf.AttachCGroupSockOps, Program: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hook.Close() })
	return closeCounter{name, count}
}

// closes returns how many connections have ended.
func (c closeCounter) closes(t *testing.T) (n uint64) {
	t.Helper()
	if err := c.count.Lookup(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCallbacksOfOthers: with outlier detection, for a Service that has it and one that does not, programs of others
// are told how connections end, whether they were attached before Beeline's or after.
func TestCallbacksOfOthers(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	before := countCloses(t, h, "attached before")
	a := h.Serve(lab.AgentOptions{Outliers: model.Outliers{Failures: 4, Time: time.Hour, Percent: 50}})
	after := countCloses(t, h, "attached after")
	without := strings.Replace(lab.Service("without", `{clusterIP: 10.96.0.2, ports: [{name: web, port: 80}]}`),
		"namespace: default", `namespace: default, annotations: {service.beeline.io/outlier-detection: "off"}`, 1)
	a.Apply(dual, lab.Slice("dual", "web:8080/TCP", backends4(1)...), without, lab.Slice("without", "web:8080/TCP", backends4(1)...))
	for i, to := range []string{dualTCP4.String(), "10.96.0.2:80"} {
		if _, err := h.Reach("tcp4", ap(to)); err != nil {
			t.Fatal(err)
		}
		for _, c := range []closeCounter{before, after} {
			lab.Eventually(t, fmt.Sprintf("the program %s is told that a connection to %s ends", c.name, to), func() bool {
				return c.closes(t) == uint64(i+1)
			})
		}
	}
}
