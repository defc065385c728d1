package verify_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/servicetest"
)

// detach detaches a pinned link, whose pin stays.
func (n *node) detach(t *testing.T, pin string) {
	t.Helper()
	l, err := link.LoadPinnedLink(n.pin(pin), nil)
	check(t, err)
	defer l.Close()
	check(t, l.Detach())
}

func ipNet(cidr string) *net.IPNet {
	_, n, _ := net.ParseCIDR(cidr)
	return n
}

func (n *node) pin(name string) string { return filepath.Join(datapath.Dir(n.BPFFS), name) }

// uplink returns the index of the device that leads outside.
func (n *node) uplink(t *testing.T) (ifindex int) {
	t.Helper()
	check(t, n.Host.Run(func() error {
		l, err := netlink.LinkByName(lab.Uplink)
		if err == nil {
			ifindex = l.Attrs().Index
		}
		return err
	}))
	return ifindex
}

// stranger loads a program of somebody else.
func stranger(t *testing.T, kind ebpf.ProgramType, attach ebpf.AttachType, verdict int32) *ebpf.Program {
	t.Helper()
	return named(t, "stranger", kind, attach, verdict)
}

// named is stranger with a name for the program.
func named(t *testing.T, name string, kind ebpf.ProgramType, attach ebpf.AttachType, verdict int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: kind, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	})
	check(t, err)
	t.Cleanup(func() { check(t, p.Close()) })
	return p
}

// breakage is one way in which a program does not work, and the finding about it.
type breakage struct {
	name, kind string
	words      []string
	do         func(t *testing.T)
}

// wantMended does each of the breakages, which leave each other alone, and wants it found, and nothing once an
// agent has run, which takes the most time of it.
func (n *node) wantMended(t *testing.T, breakages ...breakage) {
	t.Helper()
	for _, b := range breakages {
		t.Run(b.name, func(t *testing.T) {
			b.do(t)
			n.want(t, b.kind, b.words...)
		})
	}
	n.mend()
	n.wantNothing(t, "after an agent has run")
}

// TestCgroupPrograms: what happens to the programs of sockets is found while no agent runs.
func TestCgroupPrograms(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.end()
	n.wantNothing(t, "after the agent has ended")
	n.wantMended(t,
		breakage{"link detached", "link-detached", []string{"bl_connect4", "has been detached"}, func(t *testing.T) { n.detach(t, "link_bl_connect4") }},
		breakage{"pin removed", "link-removed", []string{"bl_sendmsg6", "not pinned"}, func(t *testing.T) { check(t, os.Remove(n.pin("link_bl_sendmsg6"))) }},
		breakage{"program replaced", "link-program", []string{"bl_connect6", "runs the program stranger"}, func(t *testing.T) {
			l, err := link.LoadPinnedLink(n.pin("link_bl_connect6"), nil)
			check(t, err)
			defer l.Close()
			check(t, l.Update(stranger(t, ebpf.CGroupSockAddr, ebpf.AttachCGroupInet6Connect, 1)))
		}})
	t.Run("foreign program before", func(t *testing.T) {
		check(t, os.Remove(n.pin("link_bl_connect4")))
		l, err := link.AttachCgroup(link.CgroupOptions{
			Path: n.Cgroup, Attach: ebpf.AttachCGroupInet4Connect,
			Program: stranger(t, ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect, 1),
		})
		check(t, err)
		defer l.Close()
		n.mend()
		n.want(t, "foreign-before", "program stranger", "CGroupInet4Connect")
	})
}

// TestCgroupsBelow: programs of others in cgroups below the one that is served are named once each, those
// that can change nothing for a connection are not, and a walk that is cut says so.
func TestCgroupsBelow(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.end()
	attachNamed := func(name, cgroup string, kind ebpf.ProgramType, at ebpf.AttachType) link.Link {
		t.Helper()
		path := filepath.Join(n.Cgroup, cgroup)
		check(t, os.MkdirAll(path, 0o755))
		l, err := link.AttachCgroup(link.CgroupOptions{Path: path, Attach: at, Program: named(t, name, kind, at, 1)})
		check(t, err)
		t.Cleanup(func() { check(t, l.Close()) })
		return l
	}
	attach := func(cgroup string, kind ebpf.ProgramType, at ebpf.AttachType) link.Link {
		t.Helper()
		return attachNamed("stranger", cgroup, kind, at)
	}
	attach("release", ebpf.CGroupSock, ebpf.AttachCgroupInetSockRelease)
	attach("device", ebpf.CGroupSKB, ebpf.AttachCGroupInetIngress)
	n.wantNothing(t, "with programs that change no connection")
	a := attach("a", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect)
	n.want(t, "foreign-below", "program stranger runs before Beeline's at CGroupInet4Connect of cgroup "+filepath.Join(n.Cgroup, "a"))
	attach("a/b/c", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Sendmsg)
	n.want(t, "foreign-below", "CGroupInet4Connect, CGroupUDP6Sendmsg of cgroup "+filepath.Join(n.Cgroup, "a")+" and 1 more below "+n.Cgroup)
	if r := n.check(t, 0); len(r.Findings) != 1 {
		t.Errorf("want one finding for each program:\n%s", text(r))
	}
	check(t, a.Close())
	n.want(t, "foreign-below", "CGroupUDP6Sendmsg of cgroup "+filepath.Join(n.Cgroup, "a/b/c"))
	list, err := datapath.ForeignBelow(n.Cgroup, 4) // a, a/b, device and release
	if len(list) != 0 || err == nil || !strings.Contains(err.Error(), "in 4 cgroups below "+n.Cgroup) {
		t.Errorf("a walk that is cut: %v, %v", list, err)
	}
	attachNamed("bl_connect4", "kind", ebpf.CGroupSockAddr, ebpf.AttachCGroupInet4Connect)
	attachNamed("bl_sendmsg6", "kind", ebpf.CGroupSockAddr, ebpf.AttachCGroupUDP6Sendmsg)
	n.want(t, "nested", "another Beeline serves cgroup "+filepath.Join(n.Cgroup, "kind")+", and its programs run before this one's")
	if r := n.check(t, 0); len(r.Findings) != 2 {
		t.Errorf("want one finding for all programs of another Beeline:\n%s", text(r))
	}
}

// TestDevicePrograms is the same of the programs for packets, and of devices.
func TestDevicePrograms(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--devices", "up*,extra", "--xdp", "generic")
	n.end()
	n.wantNothing(t, "after the agent has ended")
	ifindex := n.uplink(t)
	ingress, egress := fmt.Sprintf("link_tcx_%d_ingress", ifindex), fmt.Sprintf("link_tcx_%d_egress", ifindex)
	xdp := fmt.Sprintf("link_xdp_%d", ifindex)
	n.wantMended(t,
		breakage{"tcx detached", "device-link-detached", []string{"ingress link of device uplink"}, func(t *testing.T) { n.detach(t, ingress) }},
		breakage{"tcx pin removed", "device-link-removed", []string{"tc egress of device uplink"}, func(t *testing.T) { check(t, os.Remove(n.pin(egress))) }},
		breakage{"XDP detached", "xdp-detached", []string{"XDP program of device uplink"}, func(t *testing.T) { n.detach(t, xdp) }},
		breakage{"entry of a device", "device-entry", []string{"device uplink is described as MTU 1400"}, func(t *testing.T) {
			n.changeDevice(t, func(devices devicemap.Table, d devicemap.Device) error {
				d.MTU = 1400
				return devices.Put(d)
			})
		}},
		breakage{"frames of a VLAN", "device-entry", []string{"other frames of VLANs"}, func(t *testing.T) {
			n.changeDevice(t, func(devices devicemap.Table, d devicemap.Device) error {
				return devices.SetFrames(map[devicemap.Frames]uint32{{Ifindex: ifindex, Tags: devicemap.Tags{{Protocol: 0x8100, ID: 5}}}: d.ID})
			})
		}},
		breakage{"MAC address", "device-entry", []string{"MAC addresses", "020000000000"}, func(t *testing.T) {
			n.changeDevice(t, func(devices devicemap.Table, _ devicemap.Device) error {
				return devices.SetMACs(map[int]devicemap.MAC{ifindex: {2}})
			})
		}})
	n.wantMended(t,
		breakage{"tcx program replaced", "device-link-program", []string{"egress link of device uplink", "stranger"}, func(t *testing.T) {
			l, err := link.LoadPinnedLink(n.pin(egress), nil)
			check(t, err)
			defer l.Close()
			check(t, l.Update(stranger(t, ebpf.SchedCLS, ebpf.AttachTCXEgress, -1)))
		}},
		breakage{"foreign XDP program", "foreign-before", []string{"XDP program stranger", "device uplink"}, func(t *testing.T) {
			n.detach(t, xdp)
			var foreign link.Link
			check(t, n.Host.Run(func() (err error) {
				foreign, err = link.AttachXDP(link.XDPOptions{
					Interface: ifindex, Flags: link.XDPGenericMode, Program: stranger(t, ebpf.XDP, ebpf.AttachXDP, 2),
				})
				return err
			}))
			t.Cleanup(func() { check(t, foreign.Close()) })
		}},
		breakage{"index of a device", "device-entry", []string{"device uplink is not looked up by its index"}, func(t *testing.T) {
			m := n.maps()
			check(t, bpfmap.Remove(m.BlDeviceId, uint32(ifindex)))
		}})
	t.Run("foreign program before", func(t *testing.T) {
		var l link.Link
		check(t, n.Host.Run(func() (err error) {
			l, err = link.AttachTCX(link.TCXOptions{
				Interface: ifindex, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
				Program: stranger(t, ebpf.SchedCLS, ebpf.AttachTCXIngress, -1),
			})
			return err
		}))
		n.want(t, "foreign-before", "program stranger", "tc ingress of device uplink")
		check(t, l.Close())
		n.wantNothing(t, "once it is gone")
	})
	t.Run("device added", func(t *testing.T) {
		n.AddDevice("extra", n.Outside, "extra-peer")
		n.SetSysctl("ipv4/conf/extra/forwarding", "1")
		n.want(t, "device-unserved", "device extra is to be served")
	})
}

// changeDevice changes the entry of the device that leads outside.
func (n *node) changeDevice(t *testing.T, change func(devicemap.Table, devicemap.Device) error) {
	t.Helper()
	devices := devicemap.New(n.maps())
	list, err := devices.List()
	check(t, err)
	for _, d := range list {
		if d.Name == lab.Uplink {
			check(t, change(devices, d))
		}
	}
}

// sysctlCommand is one that a finding says to run.
var sysctlCommand = regexp.MustCompile(`sysctl -w net\.(\S+)=(\d+)`)

// TestMachine: what the machine lacks is found, and nothing once it has it again.
func TestMachine(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--devices", "up*,side")
	n.end()
	n.wantNothing(t, "after the agent has ended")
	m := n.maps()
	sysctl := func(name, damaged, well string) (do, undo func()) {
		return func() { n.SetSysctl(name, damaged) }, func() { n.SetSysctl(name, well) }
	}
	for _, c := range []struct {
		name, kind string
		words      []string
		setting    [3]string
	}{
		{"forwarding of IPv4", "forwarding", []string{"net.ipv4.conf.uplink.forwarding is 0"}, [3]string{"ipv4/conf/uplink/forwarding", "0", "1"}},
		{"forwarding of all devices of IPv6", "forwarding", []string{"net.ipv6.conf.all.forwarding is 0"}, [3]string{"ipv6/conf/all/forwarding", "0", "1"}},
		{"port range", "port-range", []string{"20000 to 30000"}, [3]string{"ipv4/ip_local_port_range", "20000 30000", "32768 60999"}},
		{"reserved ports", "port-reserved", []string{"ip_local_reserved_ports"}, [3]string{"ipv4/ip_local_reserved_ports", "5000", "\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			do, undo := sysctl(c.setting[0], c.setting[1], c.setting[2])
			do()
			n.want(t, c.kind, c.words...)
			undo()
			n.wantNothing(t, "once it is set back")
		})
	}
	t.Run("forwarding, mended as it says", func(t *testing.T) {
		n.SetSysctl("ipv4/conf/all/forwarding", "1")
		n.SetSysctl("ipv4/conf/uplink/forwarding", "0")
		n.SetSysctl("ipv6/conf/all/forwarding", "0")
		for _, f := range n.check(t, 0).Findings {
			commands := sysctlCommand.FindAllStringSubmatch(f.Fix, -1)
			if len(commands) != 2 {
				t.Fatalf("%s: %q has %d commands, not accept_ra and forwarding", f.What, f.Fix, len(commands))
			}
			for _, c := range commands {
				name := strings.ReplaceAll(c[1], "DEVICE", "uplink")
				n.SetSysctl(strings.ReplaceAll(name, ".", "/"), c[2])
			}
		}
		n.wantNothing(t, "once it is mended")
	})
	t.Run("forwarding of IPv6, of devices", func(t *testing.T) {
		n.SetSysctl("ipv6/conf/uplink/forwarding", "0")
		n.wantNothing(t, "while lo has what all have")
		n.SetSysctl("ipv6/conf/lo/forwarding", "0")
		n.want(t, "forwarding", "net.ipv6.conf.uplink.forwarding is 0")
		n.SetSysctl("ipv6/conf/uplink/forwarding", "1")
		n.wantNothing(t, "once the device has it")
		n.SetSysctl("ipv6/conf/lo/forwarding", "1")
	})
	t.Run("forwarding of a family without Services", func(t *testing.T) {
		ranges := servicetest.Open(t, m)
		check(t, ranges.DeleteServiceCIDR(prefix("fd96::/112")))
		n.SetSysctl("ipv6/conf/all/forwarding", "0")
		for _, f := range n.check(t, 0).Findings {
			if f.Kind == "forwarding" {
				t.Errorf("found without IPv6 Services: %s", f.What)
			}
		}
		n.SetSysctl("ipv6/conf/all/forwarding", "1")
		check(t, ranges.PutServiceCIDR(prefix("fd96::/112")))
		n.wantNothing(t, "once they are back")
	})
	t.Run("kube-proxy", func(t *testing.T) {
		remove := n.leaveTable(t)
		n.want(t, "kube-proxy", "table ip kube-proxy")
		remove()
		n.wantNothing(t, "once the table is gone")
	})
	t.Run("connection tracking loaded later", func(t *testing.T) {
		if !datapath.HaveConntrack() {
			t.Skip("the kernel has no connection tracking that programs can ask")
		}
		statusmap.New(m).SetAsksConntrack(false)
		n.want(t, "conntrack", "loaded after Beeline's programs")
		statusmap.New(m).SetAsksConntrack(true)
		n.wantNothing(t, "once they can ask")
	})
	t.Run("IPsec", func(t *testing.T) {
		// The block of an address, and a policy that lets all pass by.
		block := &netlink.XfrmPolicy{Src: ipNet("0.0.0.0/0"), Dst: ipNet("203.0.113.0/24"), Dir: netlink.XFRM_DIR_OUT, Action: netlink.XFRM_POLICY_BLOCK}
		pass := &netlink.XfrmPolicy{Src: ipNet("0.0.0.0/0"), Dst: ipNet("192.0.2.0/24"), Dir: netlink.XFRM_DIR_OUT}
		err := n.Host.Run(func() error { return netlink.XfrmPolicyAdd(pass) })
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			t.Skip("the kernel has no IPsec")
		}
		check(t, err)
		n.wantNothing(t, "with a policy by which packets leave as they are")
		check(t, n.Host.Run(func() error { return netlink.XfrmPolicyAdd(block) }))
		n.want(t, "ipsec", "IPsec has 1 policies", "to 203.0.113.0/24")
		check(t, n.Host.Run(func() error { return errors.Join(netlink.XfrmPolicyDel(block), netlink.XfrmPolicyDel(pass)) }))
		n.wantNothing(t, "once it is gone")
	})
	t.Run("rp_filter", func(t *testing.T) {
		n.AddDevice("side", n.Outside, "side-peer")
		n.AddAddr("side", "198.51.100.1/24")
		n.mend()
		n.wantNothing(t, "with a second device")
		n.SetSysctl("ipv4/conf/side/rp_filter", "1")
		n.SetSysctl("ipv4/conf/uplink/rp_filter", "1")
		n.want(t, "rp-filter", "rp_filter of device side")
		n.SetSysctl("ipv4/conf/side/rp_filter", "2")
		n.wantNothing(t, "once it is loose")
	})
}

// leaveTable makes a table as of a kube-proxy, and returns what removes it.
func (n *node) leaveTable(t *testing.T) (remove func()) {
	t.Helper()
	table := &nftables.Table{Name: "kube-proxy", Family: nftables.TableFamilyIPv4}
	change := func(change func(*nftables.Conn)) {
		check(t, n.Host.Run(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			change(c)
			return c.Flush()
		}))
	}
	change(func(c *nftables.Conn) { c.AddTable(table) })
	return func() { change(func(c *nftables.Conn) { c.DelTable(table) }) }
}

// TestTunnel: the entries and the device that direct server return needs.
func TestTunnel(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--devices", "up*", "--forwarding-mode", "dsr", "--node-ip", lab.Node4.String())
	n.end()
	n.wantNothing(t, "after the agent has ended")
	m := servicetest.Open(t, n.maps())
	have, err := m.Snapshot()
	check(t, err)
	t.Run("address of a node removed", func(t *testing.T) {
		id := have.NodeIDs[lab.Node4]
		check(t, m.DeleteNodeID(lab.Node4))
		n.want(t, "node-id-missing", lab.Node4.String())
		check(t, m.PutNodeID(lab.Node4, id))
		n.wantNothing(t, "once it is there again")
	})
	t.Run("address of no node", func(t *testing.T) {
		check(t, m.PutNodeID(addr("192.0.2.200"), 1))
		n.want(t, "node-id-surplus", "192.0.2.200")
		check(t, m.DeleteNodeID(addr("192.0.2.200")))
		n.wantNothing(t, "once it is gone")
	})
	t.Run("node changed", func(t *testing.T) {
		node := have.Nodes[1]
		node.Name = "other"
		check(t, m.PutNode(1, node))
		n.want(t, "node-changed", "is other", "want node-1")
		check(t, m.PutNode(1, have.Nodes[1]))
		n.wantNothing(t, "once it is as before")
	})
	t.Run("MTU", func(t *testing.T) {
		n.SetMTU(lab.Uplink, 1300)
		n.mend()
		n.want(t, "tunnel-mtu", "device uplink has an MTU of 1300 bytes")
	})
}
