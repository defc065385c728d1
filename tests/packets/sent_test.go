package packets_test

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestSentOnce: what the program at ingress has sent to an endpoint of another node is known to the one
// at egress, which takes the sign off again, of both directions, by IPv4 and IPv6.
func TestSentOnce(t *testing.T) {
	t.Parallel()
	if !lab.HaveTCX(t) {
		t.Skip("the kernel has no tcx (Linux 6.6)")
	}
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
	const cbAt = 48 // in struct __sk_buff
	program, count := counting(t, -1, asm.LoadMem(asm.R1, asm.R1, cbAt, asm.Word), asm.JEq.Imm(asm.R1, 0, "end"))
	n.AttachTCX(uplink, program, ebpf.AttachTCXEgress, anchor)
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
