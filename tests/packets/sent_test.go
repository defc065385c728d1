package packets_test

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// TestSentOnce: what the program at ingress has sent to an endpoint of another node is known to the one
// at egress, which takes the sign off again, of both directions, by IPv4 and IPv6.
func TestSentOnce(t *testing.T) {
	t.Parallel()
	c := newClusterFor(t, "off")
	c.serveAll(t)
	startAgent(t, c.nodes[0], c.service(1, "far", "", []endpoint{remote}), "--devices", uplink, "--xdp", "off")
	before, after := c.nodes[0].countSigns(t, link.Head()), c.nodes[0].countSigns(t, link.Tail())
	for _, network := range networks {
		s, _ := connect(t, c.client, network, nodePort(network, 1))
		if err := goesOn(s, network); err != nil {
			t.Fatalf("%s: %v", network, err)
		}
		had, left := take(t, before), take(t, after)
		// A question and an answer at least, and what began the connection.
		if had < 2 || left != 0 {
			t.Errorf("%s: %d packets had a sign before the program at egress, %d behind it", network, had, left)
		}
	}
}

// countSigns counts the packets that leave by the uplink with anything where the sign of those that
// were sent is.
func (n *node) countSigns(t *testing.T, anchor link.Anchor) *ebpf.Map {
	t.Helper()
	count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { count.Close() })
	const cbAt = 48 // in struct __sk_buff
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, cbAt, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "pass"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, count.FD()),
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
	err = n.Run(func() error {
		l, err := netlink.LinkByName(uplink)
		if err != nil {
			return err
		}
		attached, err := link.AttachTCX(link.TCXOptions{
			Program: program, Interface: l.Attrs().Index, Attach: ebpf.AttachTCXEgress, Anchor: anchor,
		})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if errors.Is(err, link.ErrNotSupported) {
		t.Skip("the kernel has no tcx (Linux 6.6)")
	} else if err != nil {
		t.Fatal(err)
	}
	return count
}

// take returns what has been counted, and begins again.
func take(t *testing.T, count *ebpf.Map) (n uint64) {
	t.Helper()
	if err := errors.Join(count.Lookup(uint32(0), &n), count.Put(uint32(0), uint64(0))); err != nil {
		t.Fatal(err)
	}
	return n
}
