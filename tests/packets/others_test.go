package packets_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// hooks are those of a device.
var hooks = []struct {
	name   string
	at     ebpf.AttachType
	parent uint32
}{
	{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
	{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
}

// other is a program of somebody else at both hooks of devices of a node. It counts long packets.
type other struct {
	t       *testing.T
	node    *node
	mode    string // tcx or clsact
	action  int32  // what it returns
	devices []string
	counts  map[string]*ebpf.Map // by device and hook
	detach  []func() error
}

// longPayload makes packets that the program counts, which others on the way are not.
var longPayload = strings.Repeat("long", 100)

func newOther(t *testing.T, n *node, mode string, action int32, devices ...string) *other {
	return &other{t: t, node: n, mode: mode, action: action, devices: devices, counts: make(map[string]*ebpf.Map)}
}

// counting returns a program for tc that counts the packets for which the instructions do not lead to
// "end", and returns an action for all.
func counting(t *testing.T, action int32, which ...asm.Instruction) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	counter, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counter.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: append(which,
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, counter.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, action).WithSymbol("end"),
			asm.Return(),
		),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program, counter
}

// attach attaches the program anew, at the front of the hooks or at their back.
func (o *other) attach(front bool) {
	o.t.Helper()
	for _, detach := range o.detach {
		if err := detach(); err != nil {
			o.t.Fatal(err)
		}
	}
	o.detach = nil
	for _, device := range o.devices {
		for i := range hooks {
			const lenAt = 0 // in struct __sk_buff
			program, counter := counting(o.t, o.action,
				asm.LoadMem(asm.R1, asm.R1, lenAt, asm.Word), asm.JLT.Imm(asm.R1, int32(len(longPayload)), "end"))
			o.counts[device+" "+hooks[i].name] = counter
			err := o.node.Run(func() error {
				l, err := netlink.LinkByName(device)
				if err != nil {
					return err
				}
				if o.mode == "tcx" {
					return o.attachLink(l, i, program, front)
				}
				return o.attachFilter(l, i, program, front)
			})
			if err != nil {
				o.t.Fatal(err)
			}
		}
	}
}

func (o *other) attachLink(l netlink.Link, hook int, program *ebpf.Program, front bool) error {
	anchor := link.Tail()
	if front {
		anchor = link.Head()
	}
	held, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: program, Attach: hooks[hook].at, Anchor: anchor})
	if err == nil {
		o.detach = append(o.detach, held.Close)
	}
	return err
}

func (o *other) attachFilter(l netlink.Link, hook int, program *ebpf.Program, front bool) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	f := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: l.Attrs().Index, Parent: hooks[hook].parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 50,
	}, Fd: program.FD(), Name: "other", DirectAction: true}
	if front {
		f.Priority = 1
	}
	o.detach = append(o.detach, func() error { return o.node.Run(func() error { return netlink.FilterDel(f) }) })
	return netlink.FilterAdd(f)
}

// seen returns how many packets have come to the program.
func (o *other) seen(device, hook string) (n uint64) {
	o.t.Helper()
	if err := o.counts[device+" "+hook].Lookup(uint32(0), &n); err != nil {
		o.t.Fatal(err)
	}
	return n
}

// behind reports whether our filters run before the other ones at all hooks.
func (o *other) behind() bool {
	o.t.Helper()
	behind := true
	err := o.node.Run(func() error {
		for _, device := range o.devices {
			l, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			for _, h := range hooks {
				filters, err := netlink.FilterList(l, h.parent)
				if err != nil {
					return err
				}
				behind = behind && len(filters) == 2 && filters[1].(*netlink.BpfFilter).Name == "other"
			}
		}
		return nil
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return behind
}

// passage is a way of packets through node 1: at which device they come in and leave again, and
// whether Beeline sends them on there at once, which programs behind it do not see.
type passage struct {
	name   string
	from   *lab.Namespace
	to     func(network string) netip.AddrPort
	server endpoint
	device string
	at     int // how many packets of a datagram and its answer pass each hook
	sent   bool
}

func (c *cluster) passages() []passage {
	cluster := func(i int) func(string) netip.AddrPort {
		return func(network string) netip.AddrPort { return netip.AddrPortFrom(clusterIP(i).of(network), 80) }
	}
	node := func(i int) func(string) netip.AddrPort {
		return func(network string) netip.AddrPort { return nodePort(network, i) }
	}
	return []passage{
		{"NodePort, near", c.client, node(1), local, uplink, 1, false},
		{"NodePort, far", c.client, node(2), remote, uplink, 2, true},
		{"ClusterIP, near", c.client, cluster(1), local, uplink, 1, false},
		{"ClusterIP, far", c.client, cluster(2), remote, uplink, 2, true},
		{"pod to another, by ClusterIP", c.nodes[0].routed, cluster(3), otherLocal, "vethrouted", 1, false},
		{"pod to the other node, by ClusterIP", c.nodes[0].routed, cluster(2), remote, "vethrouted", 1, false},
	}
}

// check asks by all ways and looks at what the other program has seen of it, where ours is before it
// or not.
func (o *other) check(c *cluster, when string, oursFirst bool) {
	o.t.Helper()
	for _, p := range c.passages() {
		for _, network := range networks {
			var before [2]uint64
			for i, h := range hooks {
				before[i] = o.seen(p.device, h.name)
			}
			if got, err := ask(p.from, network, p.to(network), longPayload); err != nil || got.name != p.server.server() {
				o.t.Errorf("%s: %s by %s: reached %v, error %v; want %s; the other program saw %d packets at ingress, %d at egress", when, p.name, network,
					got.greeting, err, p.server.server(), o.seen(p.device, "ingress")-before[0], o.seen(p.device, "egress")-before[1])
				continue
			}
			for i, h := range hooks {
				want, saw := p.at, int(o.seen(p.device, h.name)-before[i])
				if oursFirst && p.sent && h.name == "ingress" {
					want = 0
				}
				if saw < want || want == 0 && saw > 0 {
					o.t.Errorf("%s: %s by %s: the other program saw %d packets at %s, want %d", when, p.name, network, saw, h.name, want)
				}
			}
		}
	}
}

// TestOtherPrograms: programs of others at the devices go on beside ours, and Services are served,
// whoever was attached first, at the front or at the back, and over restarts of both. One that lets the
// kernel ask no program behind it (TC_ACT_OK) hides ours in one case, which is told of: where it has
// put itself before ours by tcx.
func TestOtherPrograms(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		for action, name := range map[int32]string{-1: "passes on", 0: "ends the chain"} {
			t.Run(mode+" "+name, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, mode == "clsact" && action == 0)
				if mode == "tcx" && !lab.HaveTCX(t) {
					t.Skip("the kernel lacks tcx links: they need Linux 6.6")
				}
				c := newCluster(t, false)
				o := newOther(t, c.nodes[0], mode, action, uplink, "vethrouted")
				o.attach(true)
				manifests := append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
				a := c.serve(t, append(manifests, c.service(3, "beside", "", []endpoint{otherLocal})...),
					append([]string{"--tc-mode", mode}, podFlags...)...)
				o.check(c, "attached first", true)
				o.attach(false)
				o.check(c, "attached at the back", true)
				a.again()
				o.check(c, "at the back, over a restart of ours", true)
				o.attach(true)
				switch {
				case mode == "clsact":
					lab.Eventually(t, "our filters are the first again", o.behind)
					o.check(c, "attached at the front", true)
					a.again()
					o.check(c, "at the front, over a restart of ours", true)
				case action != 0:
					o.check(c, "attached before ours", false)
					a.again()
					o.check(c, "before ours, over a restart of ours", false)
				default:
					o.hides(c)
				}
				o.attach(false)
				o.check(c, "attached at the back again", true)
			})
		}
	}
}

// again ends the agent and starts it anew.
func (a *agent) again() {
	a.t.Helper()
	a.Signal(unix.SIGTERM)
	if err := a.Wait(); err != nil {
		a.t.Fatal(err)
	}
	a.start()
}

// hides checks that the program is told of which keeps ours from all packets, and what becomes of them:
// nothing is served by packets, as without Beeline.
func (o *other) hides(c *cluster) {
	o.t.Helper()
	for _, network := range networks[:2] {
		if got, err := ask(c.client, network, nodePort(network, 1), "x"); !errors.Is(err, unix.ECONNREFUSED) {
			o.t.Errorf("%s behind a program that ends the chain: reached %v, error %v, want it refused by the node", network, got, err)
		}
	}
	if said := beeline(o.t, o.node, "verify"); !strings.Contains(said, "foreign-before") || strings.Count(said, "program other") != 4 {
		o.t.Errorf("verify says %q, want the program before ours at both hooks of %q", said, o.devices)
	}
}
