package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/rtnl"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/setup"
	"github.com/beeline-lb/beeline/pkg/source/host"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// lookAtPrograms looks at what is attached, and at the choice of devices.
func (c *Checker) lookAtPrograms() (list []Finding, err error) {
	if c.noSettings != nil {
		return nil, c.noSettings
	}
	o := setup.Datapath(c.settings, statusmap.New(c.maps).Agent().Cgroup)
	if local := c.state.All().LocalNode; local != nil {
		o.NodeAddrs = model.PreferAddrs(o.NodeAddrs, local.Addrs)
	}
	problems, err := datapath.Problems(c.opts.BPFFS, c.maps, o)
	for _, p := range problems {
		list = append(list, Finding{Part: Programs, Kind: p.Kind, What: p.Text})
	}
	return list, err
}

// machine collects what the machine lacks.
type machine struct {
	*Checker
	devices []devicemap.Device // that are served
	list    []Finding
}

func (m *machine) add(kind, format string, args ...any) {
	m.list = append(m.list, Finding{Part: Machine, Kind: kind, What: fmt.Sprintf(format, args...)})
}

// lookAtMachine looks at the settings of the kernel and at what others have made; where the source
// answers, also at the clock.
func (c *Checker) lookAtMachine(ctx context.Context, source bool) ([]Finding, error) {
	m := &machine{Checker: c}
	devices, err := devicemap.New(c.maps).List()
	for _, d := range devices {
		if d.Ifindex != 0 {
			m.devices = append(m.devices, d)
		}
	}
	err = errors.Join(err, m.forwarding(), m.sourcePorts(), m.leftovers(), m.tunnel(), m.conntrack())
	if source {
		err = errors.Join(err, m.clock(ctx))
	}
	return m.list, err
}

// clockLimit is how far the clock may differ from the API server's.
const clockLimit = 10 * time.Second

// clock compares the clock with the API server's.
func (m *machine) clock(ctx context.Context) error {
	ahead, err := m.ahead.get(ctx, m.source.ClockAhead)
	switch {
	case err != nil:
		return err
	case ahead > clockLimit:
		m.add("clock", "the clock is %s ahead of the API server's", ahead.Round(time.Second))
	case ahead < -clockLimit:
		m.add("clock", "the clock is %s behind the API server's", -ahead.Round(time.Second))
	}
	return nil
}

// ahead is how far the clock is ahead of another one, which is asked now and then.
type ahead struct {
	asked time.Time
	value time.Duration
}

func (a *ahead) get(ctx context.Context, ask func(context.Context) (time.Duration, error)) (time.Duration, error) {
	const valid, patience = time.Minute, 5 * time.Second
	if ask == nil || !a.asked.IsZero() && time.Since(a.asked) < valid {
		return a.value, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	value, err := ask(ctx)
	if err == nil {
		a.asked, a.value = time.Now(), value
	}
	return value, err
}

// setting reads a number below net; false where the kernel has no such setting.
func (m *machine) setting(name string) (value int, found bool, err error) {
	text, err := os.ReadFile(filepath.Join(m.opts.Sysctls, "net", name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	value, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return value, err == nil, err
}

// forwarding looks at what packets of clients meet at the devices that are served.
func (m *machine) forwarding() error {
	var errs []error
	for i := range m.devices {
		d := &m.devices[i]
		for _, f := range []struct {
			name string
			addr netip.Addr
		}{{"ipv4", d.Addr4}, {"ipv6", d.Addr6}} {
			value, found, err := m.setting(fmt.Sprintf("%s/conf/%s/forwarding", f.name, d.Name))
			errs = append(errs, err)
			if found && value == 0 && f.addr.IsValid() {
				m.add("forwarding", "net.%s.conf.%s.forwarding is 0", f.name, d.Name)
			}
		}
		errs = append(errs, m.reversePath(d))
	}
	return errors.Join(errs...)
}

// strict is the value of rp_filter that drops packets from another device than the reverse path's
// leaves by.
const strict = 1

// reversePath looks at rp_filter, which hurts at a device that no default route leaves by.
func (m *machine) reversePath(d *devicemap.Device) error {
	own, _, err := m.setting("ipv4/conf/" + d.Name + "/rp_filter")
	all, _, errAll := m.setting("ipv4/conf/all/rp_filter")
	if err := errors.Join(err, errAll); err != nil || max(own, all) != strict || !d.Addr4.IsValid() {
		return err
	}
	routes, err := rtnl.Routes(func(r *netlink.Route) bool { return isDefault(r) })
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.LinkIndex == d.Ifindex {
			return nil
		}
		for _, hop := range r.MultiPath {
			if hop.LinkIndex == d.Ifindex {
				return nil
			}
		}
	}
	m.add("rp-filter", "rp_filter of device %s is strict (1), and no default route leaves by it", d.Name)
	return nil
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
	have := m.maps.SourcePorts()
	if have.LocalMin != want.LocalMin || have.LocalMax != want.LocalMax {
		m.add("port-range", "the programs take %d to %d for the node's own source ports, ip_local_port_range is %d to %d",
			have.LocalMin, have.LocalMax, want.LocalMin, want.LocalMax)
	}
	if have.Reserved != want.Reserved {
		m.add("port-reserved", "the programs know other reserved ports than ip_local_reserved_ports names")
	}
	return nil
}

// leftovers names what a kube-proxy has made.
func (m *machine) leftovers() error {
	left, err := kubeproxy.Left()
	for _, name := range left {
		m.add("kube-proxy", "kube-proxy has made: %s", name)
	}
	return err
}

// leastTunnelMTU is the MTU below which a device has no tunnel: that of IPv6 and the tunnel's own
// headers.
const leastTunnelMTU = 1280 + 88

// tunnel looks at the devices by which packets go in the tunnel.
func (m *machine) tunnel() error {
	have, err := servicemap.New(m.maps).Snapshot()
	if err != nil || m.settings == nil || m.settings.TunnelPort == 0 || len(have.Nodes) == 0 {
		return err
	}
	for i := range m.devices {
		if d := &m.devices[i]; d.MTU < leastTunnelMTU {
			m.add("tunnel-mtu", "device %s has an MTU of %d bytes, the tunnel needs %d", d.Name, d.MTU, leastTunnelMTU)
		}
	}
	return nil
}

// conntrack looks whether connection tracking was loaded after the programs.
func (m *machine) conntrack() error {
	if m.noSettings == nil && !statusmap.New(m.maps).AsksConntrack() && datapath.HaveConntrack() {
		m.add("conntrack", "connection tracking was loaded after Beeline's programs, which cannot ask it")
	}
	return nil
}
