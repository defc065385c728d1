package verify

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/rtnl"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/source/host"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// MachineChecker compares a machine with what serving Services takes, for the command and for the agent.
// The network namespace is that of the calling thread.
type MachineChecker struct {
	Maps *bpfmap.Maps
	// Settings are the agent's; nil: they are not known.
	Settings *config.Settings
	// ClockAhead and NodeMissing are those of [setup.Services].
	ClockAhead  func() (ahead time.Duration, known bool)
	NodeMissing func() bool
}

// MachineKinds are the kinds of findings of a machine.
var MachineKinds = []string{
	"forwarding", "rp-filter", "port-range", "port-reserved", "kube-proxy", "firewall", "tunnel-mtu", "conntrack", "ipsec", "clock", "node", "config-file",
}

// machine collects what a look finds.
type machine struct {
	*MachineChecker
	devices []devicemap.Device // that are served
	list    []Finding
}

// add notes a finding, which is the same one as another with its kind and about, whatever numbers its
// text has.
func (m *machine) add(kind, about, format string, args ...any) {
	m.list = append(m.list, Finding{Part: Machine, Kind: kind, What: fmt.Sprintf(format, args...), about: about})
}

// look looks once at the settings of the kernel, at what others have made and at the clock.
func (c *MachineChecker) look() ([]Finding, error) {
	devices, err := devicemap.New(c.Maps).Present()
	m := &machine{MachineChecker: c, devices: devices}
	err = errors.Join(err, m.forwarding(), m.reversePaths(), m.sourcePorts(), m.leftovers(), m.firewalls(), m.tunnel(), m.conntrack(), m.ipsec())
	m.clock()
	m.node()
	m.files()
	return m.list, err
}

// files compares the configuration's files with what the agent has read. To the command they may be others, and its
// settings come from none.
func (m *machine) files() {
	if m.Settings == nil {
		return
	}
	for _, name := range m.Settings.Config.Changed() {
		m.add("config-file", name, "the configuration file %s is not what the agent has read at its start", name)
	}
}

// clockLimit is how far the clock may differ from the API server's.
const clockLimit = 10 * time.Second

// clock compares the clock with the API server's.
func (m *machine) clock() {
	if m.ClockAhead == nil {
		return
	}
	switch ahead, _ := m.ClockAhead(); { // 0 where it is not known
	case ahead > clockLimit:
		m.add("clock", "", "the clock is %s ahead of the API server's", ahead.Round(time.Second))
	case ahead < -clockLimit:
		m.add("clock", "", "the clock is %s behind the API server's", -ahead.Round(time.Second))
	}
}

// node looks whether the cluster has this node.
func (m *machine) node() {
	if m.NodeMissing != nil && m.NodeMissing() {
		m.add("node", "", "the API server has no Node %q, which is this node's name here", m.Settings.NodeName)
	}
}

// families returns which IP families Services have whose ranges these are. Where no range of theirs is
// known, that may be both.
func families(ranges []netip.Prefix) (ipv4, ipv6 bool) {
	for _, r := range ranges {
		ipv4, ipv6 = ipv4 || r.Addr().Is4(), ipv6 || r.Addr().Is6()
	}
	return ipv4 || len(ranges) == 0, ipv6 || len(ranges) == 0
}

// forwarding looks at what packets of clients meet at the devices that are served. Where the kernel forwards nothing by
// default, the setting for all devices is named: replies come in by others, those of pods.
func (m *machine) forwarding() error {
	ranges, err := servicemap.New(m.Maps).ServiceCIDRs()
	ipv4, ipv6 := families(ranges)
	errs := []error{err}
	for _, f := range []struct {
		name   string
		served bool
		byAll  bool // packets are forwarded only where the setting for all devices says so
		addr   func(*devicemap.Device) netip.Addr
	}{
		{"ipv4", ipv4, false, func(d *devicemap.Device) netip.Addr { return d.Addr4 }},
		{"ipv6", ipv6, true, func(d *devicemap.Device) netip.Addr { return d.Addr6 }},
	} {
		if !f.served {
			continue
		}
		all, allSysctl := netns.OfDevice(f.name, "all", "forwarding")
		byDefault, found, err := netns.Setting(all)
		lo, _, loErr := netns.Setting(f.name + "/conf/lo/forwarding")
		errs = append(errs, err, loErr)
		off, told := found && byDefault == 0, false
		for i := range m.devices {
			d := &m.devices[i]
			if !f.addr(d).IsValid() {
				continue
			}
			name, sysctl := netns.OfDevice(f.name, d.Name, "forwarding")
			value, found, err := netns.Setting(name)
			errs = append(errs, err)
			forwards := value != 0
			if f.byAll {
				forwards = (forwards || lo != 0) && (!off || netns.ForcesForwarding(d.Name))
			}
			if !found || forwards {
				continue
			}
			if !off {
				m.add("forwarding", sysctl, "%s is 0", sysctl)
			} else if !told {
				m.add("forwarding", allSysctl, "%s is 0", allSysctl)
				told = true
			}
		}
	}
	return errors.Join(errs...)
}

// strict is the value of rp_filter that drops packets from another device than the reverse path's
// leaves by.
const strict = 1

// reversePaths looks at rp_filter, which hurts at a device that no default route leaves by. One that
// is served for nothing but an address of its own is left out: neither tunnel nor pods of other nodes are known to
// come by it, and of its clients the filter says what it says of the machine's own connections.
func (m *machine) reversePaths() error {
	all, _, err := netns.Setting("ipv4/conf/all/rp_filter")
	errs := []error{err}
	var filtered []devicemap.Device
	for _, d := range m.devices {
		if d.Addressed() {
			continue
		}
		own, _, err := netns.Setting("ipv4/conf/" + d.Name + "/rp_filter")
		errs = append(errs, err)
		if err == nil && max(own, all) == strict && d.Addr4.IsValid() {
			filtered = append(filtered, d)
		}
	}
	if len(filtered) == 0 { // to list routes takes time
		return errors.Join(errs...)
	}
	routes, err := rtnl.Routes(isDefault)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, d := range filtered {
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return leavesBy(&r, d.Ifindex) }) {
			m.add("rp-filter", d.Name, "rp_filter of device %s is strict (1), and no default route leaves by it", d.Name)
		}
	}
	return errors.Join(errs...)
}

// leavesBy reports whether a route leaves by a device.
func leavesBy(r *netlink.Route, ifindex int) bool {
	return r.LinkIndex == ifindex ||
		slices.ContainsFunc(r.MultiPath, func(hop *netlink.NexthopInfo) bool { return hop.LinkIndex == ifindex })
}

// isDefault reports whether a route is one of IPv4 to everywhere.
func isDefault(r *netlink.Route) bool {
	if r.Family != netlink.FAMILY_V4 {
		return false
	}
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// sourcePorts compares what the programs know of the node's own ports with the settings.
func (m *machine) sourcePorts() error {
	want, err := host.SourcePorts()
	if err != nil {
		return err
	}
	have := m.Maps.SourcePorts()
	if have.LocalMin != want.LocalMin || have.LocalMax != want.LocalMax {
		m.add("port-range", "", "the programs take %d to %d for the node's own source ports, ip_local_port_range is %d to %d",
			have.LocalMin, have.LocalMax, want.LocalMin, want.LocalMax)
	}
	if have.Reserved != want.Reserved {
		m.add("port-reserved", "", "the programs know other reserved ports than ip_local_reserved_ports names")
	}
	return nil
}

// leftovers names what a kube-proxy has made.
func (m *machine) leftovers() error {
	left, err := kubeproxy.Left()
	if len(left) > 0 {
		m.add("kube-proxy", "", "kube-proxy has made: %s", strings.Join(left, ", "))
	}
	return err
}

// firewalls looks for chains of nftables that drop what clients send to endpoints of this node's pods, where
// Beeline marks such packets.
func (m *machine) firewalls() error {
	if m.Settings == nil || !m.Settings.AcceptForwarded || len(m.devices) == 0 {
		return nil
	}
	ranges, err := servicemap.New(m.Maps).ServiceCIDRs()
	ipv4, ipv6 := families(ranges)
	devices := make(map[string]int)
	for _, d := range m.devices {
		devices[d.Name] = d.Ifindex
	}
	chains, failed := kubeproxy.Dropping(ipv4, ipv6, devices, slices.Concat(m.Settings.PodRanges, ranges))
	for _, c := range chains {
		m.add("firewall", c, "chain %s of nftables drops new connections to endpoints of this node's pods", c)
	}
	return errors.Join(err, failed)
}

// leastTunnelMTU is the MTU below which a device has no tunnel: that of IPv6 and the tunnel's own
// headers.
const leastTunnelMTU = 1280 + 88

// tunnel looks at the devices by which packets go in the tunnel.
func (m *machine) tunnel() error {
	if m.Settings == nil || m.Settings.TunnelPort == 0 {
		return nil
	}
	nodes, err := nodemap.New(m.Maps).List()
	if err != nil || len(nodes) == 0 {
		return err
	}
	for i := range m.devices {
		if d := &m.devices[i]; d.MTU < leastTunnelMTU {
			m.add("tunnel-mtu", d.Name, "device %s has an MTU of %d bytes, the tunnel needs %d", d.Name, d.MTU, leastTunnelMTU)
		}
	}
	return nil
}

// conntrack looks whether connection tracking was loaded after the programs.
func (m *machine) conntrack() error {
	if m.Settings == nil || statusmap.New(m.Maps).AsksConntrack() {
		return nil
	}
	// Without connection tracking there is no such setting; to search the kernel's types takes time.
	_, loaded, err := netns.Setting("netfilter/nf_conntrack_max")
	if loaded && datapath.HaveConntrack() {
		m.add("conntrack", "", "connection tracking was loaded after Beeline's programs, which cannot ask it")
	}
	return err
}

// ipsec looks for policies of IPsec (ip-xfrm(8)) about what leaves the machine: what the programs send to other nodes
// and back to clients by themselves goes past them. One with a mark is for packets that somebody marks, which
// these are not.
func (m *machine) ipsec() error {
	if len(m.devices) == 0 {
		return nil
	}
	policies, err := rtnl.Complete(func() ([]netlink.XfrmPolicy, error) { return netlink.XfrmPolicyList(netlink.FAMILY_ALL) })
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EPERM) {
		return nil // the kernel has no IPsec, or somebody without rights asks
	}
	about := ""
	found := 0
	for i := range policies {
		p := &policies[i]
		if p.Dir != netlink.XFRM_DIR_OUT || p.Mark != nil || p.Ifid != 0 || p.Action == netlink.XFRM_POLICY_ALLOW && len(p.Tmpls) == 0 {
			continue
		}
		if found++; found == 1 {
			about = fmt.Sprintf("from %s to %s", p.Src, p.Dst)
		}
	}
	if found > 0 {
		m.add("ipsec", "", "IPsec has %d policies for what leaves the machine, one of them for packets %s", found, about)
	}
	return err
}
