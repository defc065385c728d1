package netns_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
)

// The kinds of packets that frameCounter counts.
const (
	frameSpoiled = iota // it does not begin with its Ethernet header
	frameSmall
	frameLarge // of several segments in one, in several buffers
	frameKinds
)

// frameCounter returns a program for tc that counts the packets of each kind and passes them on.
func frameCounter(t *testing.T) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: frameKinds})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	// Where struct __sk_buff has its members, and an Ethernet header its type.
	const lenAt, protocolAt, typeAt = 0, 16, 12
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Imm(asm.R7, frameSpoiled),
		asm.Mov.Imm(asm.R2, typeAt),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 2),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "count"),
		asm.LoadMem(asm.R1, asm.RFP, -8, asm.Half),
		asm.LoadMem(asm.R2, asm.R6, protocolAt, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R2, "count"),
		asm.Mov.Imm(asm.R7, frameSmall),
		asm.LoadMem(asm.R1, asm.R6, lenAt, asm.Word),
		asm.JLE.Imm(asm.R1, 4096, "count"),
		asm.Mov.Imm(asm.R7, frameLarge),
		asm.StoreMem(asm.RFP, -4, asm.R7, asm.Word).WithSymbol("count"),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program, counts
}

// countFrames counts the packets that a device of the host has received, before any other
// program at tc.
func countFrames(t *testing.T, h *lab.Host, device string) *ebpf.Map {
	t.Helper()
	if !lab.HaveTCX(t) {
		t.Skip("the kernel has no tcx (Linux 6.6)")
	}
	program, counts := frameCounter(t)
	h.AttachTCX(device, program, ebpf.AttachTCXIngress, link.Head())
	return counts
}

// TestGenericXDPPassesWholeFrames: frames that generic XDP passes reach tc with their Ethernet header,
// also those in several buffers.
func TestGenericXDPPassesWholeFrames(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.Serve(lab.AgentOptions{Devices: []string{lab.Uplink}, XDP: datapath.XDPGeneric})
	counts := countFrames(t, h, lab.Uplink)
	for _, addr := range []netip.Addr{lab.Node4, lab.Node6} {
		server := netip.AddrPortFrom(addr, 8080)
		h.ServeTCP(server)
		s := h.Outside.Socket(map[bool]string{true: "tcp4", false: "tcp6"}[addr.Is4()])
		if err := s.Connect(server); err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.Receive(); got != server.String() || err != nil {
			t.Fatalf("the server says %q, %v", got, err)
		}
		sent := strings.Repeat("in several buffers ", 1000)
		if err := s.Send(sent); err != nil {
			t.Fatal(err)
		}
		received := ""
		for len(received) < len(sent) {
			got, _, err := s.Receive()
			if err != nil || got == "" {
				t.Fatalf("after %d bytes: %v", len(received), err)
			}
			received += got
		}
		if received != sent {
			t.Errorf("%s: what comes back is not what was sent", server)
		}
	}
	var n [frameKinds]uint64
	for kind := range n {
		if err := counts.Lookup(uint32(kind), &n[kind]); err != nil {
			t.Fatal(err)
		}
	}
	if n[frameSpoiled] > 0 || n[frameSmall] == 0 || n[frameLarge] == 0 {
		t.Errorf("%d packets without their Ethernet header, %d small ones, %d large ones", n[frameSpoiled], n[frameSmall], n[frameLarge])
	}
}
