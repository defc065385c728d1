package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// networkText lists devices with their addresses and the programs at XDP and tc.
func networkText(ctx context.Context) ([]byte, error) {
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	var errs []error
	for _, l := range links {
		if ctx.Err() != nil {
			return out.Bytes(), ctx.Err()
		}
		a := l.Attrs()
		fmt.Fprintf(&out, "%d: %s %s mtu %d %s master %d\n", a.Index, a.Name, l.Type(), a.MTU, a.Flags, a.MasterIndex)
		if a.Xdp != nil && a.Xdp.Attached {
			fmt.Fprintf(&out, "    xdp program %s\n", programTitle(ebpf.ProgramID(a.Xdp.ProgId)))
		}
		addrs, err := rtnl.Addrs(l)
		errs = append(errs, err)
		for _, addr := range addrs {
			fmt.Fprintf(&out, "    %s\n", addr.IPNet)
		}
		errs = append(errs, tcText(&out, l))
	}
	return out.Bytes(), errors.Join(errs...)
}

// tcText lists the programs at tc of a device: those of tcx in their order, and the filters
// of clsact.
func tcText(out io.Writer, l netlink.Link) error {
	var errs []error
	for _, hook := range []struct {
		name   string
		tcx    ebpf.AttachType
		parent uint32
	}{
		{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
		{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
	} {
		// A kernel before Linux 6.6 has no tcx, which is an error.
		if attached, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: hook.tcx}); err == nil {
			for _, p := range attached.Programs {
				fmt.Fprintf(out, "    tcx %s program %s\n", hook.name, programTitle(p.ID))
			}
		}
		filters, err := rtnl.Filters(l, hook.parent)
		errs = append(errs, err)
		for _, f := range filters {
			fmt.Fprintf(out, "    tc %s %s\n", hook.name, f)
		}
	}
	return errors.Join(errs...)
}

// maxRoutes is how many routes are listed: a router may have a million.
const maxRoutes = 5000

// routesText lists the rules of routing and the routes of all tables.
func routesText(context.Context) ([]byte, error) {
	var out bytes.Buffer
	rules, errRules := rtnl.Complete(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
	for _, r := range rules {
		fmt.Fprintln(&out, r)
	}
	total := 0
	routes, err := rtnl.Complete(func() (routes []netlink.Route, err error) {
		total = 0
		filter := &netlink.Route{Table: 0} // of any
		err = netlink.RouteListFilteredIter(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if total++; total <= maxRoutes {
				routes = append(routes, r)
			}
			return true
		})
		return routes, err
	})
	for _, r := range routes {
		fmt.Fprintln(&out, r)
	}
	if total > maxRoutes {
		fmt.Fprintf(&out, "and %d more\n", total-maxRoutes)
	}
	return out.Bytes(), errors.Join(errRules, err)
}

// netfilterText lists the tables of nftables, those of iptables' nft variant among them, and the
// chains that packets come to by a hook.
func netfilterText(context.Context) ([]byte, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, errTables := c.ListTables()
	chains, errChains := c.ListChains()
	var out bytes.Buffer
	for _, t := range tables {
		fmt.Fprintf(&out, "table %s %s\n", familyName(t.Family), t.Name)
		others := 0
		for _, chain := range chains {
			if chain.Table.Name != t.Name || chain.Table.Family != t.Family {
				continue
			}
			if chain.Hooknum == nil {
				others++
				continue
			}
			fmt.Fprintf(&out, "    chain %s type %s hook %d priority %d%s\n",
				chain.Name, chain.Type, *chain.Hooknum, *chain.Priority, policyName(chain.Policy))
		}
		fmt.Fprintf(&out, "    %d chains without a hook\n", others)
	}
	if len(tables) == 0 && errTables == nil {
		out.WriteString("no tables\n")
	}
	return out.Bytes(), errors.Join(errTables, errChains)
}

func familyName(f nftables.TableFamily) string {
	names := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
		nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
	}
	if name, ok := names[f]; ok {
		return name
	}
	return fmt.Sprint(f)
}

func policyName(p *nftables.ChainPolicy) string {
	switch {
	case p == nil:
		return ""
	case *p == nftables.ChainPolicyDrop:
		return " policy drop"
	}
	return " policy accept"
}
