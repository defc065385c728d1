package packets_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/tests/lab"
)

// otherMark is a bit that somebody else marks packets with.
const otherMark = 0x200

// TestMarksOfOthers: packets that others mark with bits of their own keep those beside Beeline's, and
// are routed by a rule for them: those that a rule of nftables marks, and those that a tc program has
// marked before they came to Beeline's. A connection of a Service takes the way of the marked ones.
func TestMarksOfOthers(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft", "ip")
	if !lab.HaveTCX(t) {
		t.Skip("the kernel lacks tcx links: they need Linux 6.6")
	}
	for name, mark := range map[string]func(*testing.T, *node){"nftables": markByRule, "tc": markByProgram} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, false)
			n := c.nodes[0]
			n.addSecondWay(t)
			n.markForwarded(t, c.serve(t, c.service(1, "near", "", []endpoint{local}), "--tc-mode", "tcx"))
			for _, marked := range []bool{false, true} {
				if marked {
					mark(t, n)
				}
				for _, network := range networks {
					before := n.secondWay(t, network)
					got, err := ask(c.client, network, nodePort(network, 1), "x")
					if err != nil || got.name != local.server() || got.client.Addr() != clientAddrs.of(network) {
						t.Errorf("%s, marked: %t: reached %v, error %v", network, marked, got.greeting, err)
					}
					if went := n.secondWay(t, network) > before; went != marked {
						t.Errorf("%s, marked: %t: packets with both marks went by the rule's device: %t", network, marked, went)
					}
				}
			}
		})
	}
}

// markForwarded ends an agent, which serves manifests, and has the program for packets that it leaves
// mark them as that of an agent of a cluster does.
func (n *node) markForwarded(t *testing.T, a *agent) {
	t.Helper()
	a.Signal(unix.SIGTERM)
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	err := n.Run(func() error {
		maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
		if err != nil {
			return err
		}
		defer maps.Close()
		programs, err := datapath.LoadDevices(maps, datapath.Constants{ForwardMark: kubeproxy.ForwardMark}, bpf.TcProgBlIngress)
		if err != nil {
			return err
		}
		defer programs[bpf.TcProgBlIngress].Close()
		l, err := netlink.LinkByName(uplink)
		if err != nil {
			return err
		}
		pinned, err := link.LoadPinnedLink(filepath.Join(datapath.Dir(n.BPFFS), fmt.Sprintf("link_tcx_%d_ingress", l.Attrs().Index)), nil)
		if err != nil {
			return err
		}
		defer pinned.Close()
		return pinned.Update(programs[bpf.TcProgBlIngress])
	})
	if err != nil {
		t.Fatal(err)
	}
}

// addSecondWay gives the routed pod a second device, which marked packets are routed to, and counts
// those that have Beeline's mark, too.
func (n *node) addSecondWay(t *testing.T) {
	t.Helper()
	n.routed.SetSysctl("ipv4/conf/all/rp_filter", "0")
	n.AddDevice("vethsecond", n.routed, "eth1")
	n.routed.SetSysctl("ipv4/conf/eth1/rp_filter", "0")
	for i, a := range n.routedAddrs() {
		n.routed.AddAddr("eth1", netip.PrefixFrom(a, a.BitLen()).String())
		family := []string{"-4", "-6"}[i]
		for _, command := range []string{
			fmt.Sprintf("%s route add %s dev vethsecond table 100", family, a),
			fmt.Sprintf("%s rule add fwmark %#x/%#x table 100", family, otherMark, otherMark),
		} {
			run(t, n.Namespace, "ip", strings.Fields(command)...)
		}
	}
	run(t, n.Namespace, "nft", fmt.Sprintf(`table inet ways {
	counter ipv4 { }
	counter ipv6 { }
	chain forward {
		type filter hook forward priority 0
		oifname vethsecond meta nfproto ipv4 meta mark & %#x == %#[1]x counter name ipv4
		oifname vethsecond meta nfproto ipv6 meta mark & %#[1]x == %#[1]x counter name ipv6
	}
}`, otherMark|kubeproxy.ForwardMark))
}

// secondWay returns how many packets with both marks went by the second device.
func (n *node) secondWay(t *testing.T, network string) int {
	t.Helper()
	return wayPackets(t, n.Namespace, "ipv"+network[3:])
}

// wayPackets returns what a counter of nftables' table inet ways has counted.
func wayPackets(t *testing.T, at *lab.Namespace, counter string) (packets int) {
	t.Helper()
	out, err := at.Output("nft", "list", "counter", "inet", "ways", counter)
	if err != nil {
		t.Fatal(failure(err))
	}
	_, counted, _ := strings.Cut(out, "packets ")
	if _, err := fmt.Sscan(counted, &packets); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return packets
}

// markByRule marks what comes in by the uplink as iptables' MARK and CNIs do: the bit alone.
func markByRule(t *testing.T, n *node) {
	t.Helper()
	run(t, n.Namespace, "nft", fmt.Sprintf(`table inet marks {
	chain prerouting {
		type filter hook prerouting priority mangle
		iifname uplink meta mark set meta mark or %#x
	}
}`, otherMark))
}

// markByProgram does so by a program before Beeline's.
func markByProgram(t *testing.T, n *node) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "mark", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.R1, 8, otherMark, asm.Word), // mark
			asm.Mov.Imm(asm.R0, -1),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	n.AttachTCX(uplink, program, ebpf.AttachTCXIngress, link.Head())
}
