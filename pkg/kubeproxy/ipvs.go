package kubeproxy

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// IPVSDevice has the addresses of Services in kube-proxy's IPVS mode.
const IPVSDevice = "kube-ipvs0"

// ipvsStatus is there when the kernel has IPVS.
const ipvsStatus = "/proc/thread-self/net/ip_vs"

// ipSets are the sets of kube-proxy's IPVS mode, those of IPv4.
var ipSets = []string{
	"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL",
	"KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-LOCAL", "KUBE-LOAD-BALANCER-FW",
	"KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-LOAD-BALANCER-SOURCE-CIDR",
	"KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-LOCAL-TCP", "KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP",
	"KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
	"KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS",
}

// nodePortSets hold the NodePorts, by protocol.
var nodePortSets = map[uint16]string{
	unix.IPPROTO_TCP:  "KUBE-NODE-PORT-TCP",
	unix.IPPROTO_UDP:  "KUBE-NODE-PORT-UDP",
	unix.IPPROTO_SCTP: "KUBE-NODE-PORT-SCTP-HASH",
}

// ipSetNames returns the names of a set in both families. A set's name has at most
// 31 characters.
func ipSetNames(v4 string) []string {
	v6 := "KUBE-6-" + strings.TrimPrefix(v4, "KUBE-")
	return []string{v4, v6[:min(len(v6), 31)]}
}

// servicePort is a protocol and a port.
type servicePort struct{ protocol, port uint16 }

// cleanIPVS removes the virtual servers, then the device.
func cleanIPVS(r *Report) error {
	device, err := netlink.LinkByName(IPVSDevice)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		device = nil
	} else if err != nil {
		return fmt.Errorf("ipvs: look for device %s: %w", IPVSDevice, err)
	}
	if err := cleanVirtualServers(r, device); err != nil {
		return err
	}
	if device == nil {
		return nil
	}
	if err := netlink.LinkDel(device); err != nil {
		return fmt.Errorf("ipvs: delete device %s: %w", IPVSDevice, err)
	}
	r.removed("device %s", IPVSDevice)
	return nil
}

// cleanVirtualServers removes those on addresses of the device and those of
// NodePorts. Others may have virtual servers too.
func cleanVirtualServers(r *Report, device netlink.Link) error {
	if _, err := os.Stat(ipvsStatus); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	addrs, err := deviceAddrs(device)
	if err != nil {
		return err
	}
	ports, err := nodePorts()
	if err != nil {
		return err
	}
	handle, err := ipvs.New("")
	if err != nil {
		return fmt.Errorf("ipvs: open a netlink socket: %w", err)
	}
	defer handle.Close()
	services, err := handle.GetServices()
	if err != nil {
		return fmt.Errorf("ipvs: list the virtual servers: %w", err)
	}
	var errs []error
	count := 0
	for _, s := range services {
		addr, _ := netip.AddrFromSlice(s.Address)
		if s.FWMark != 0 || !addrs[addr.Unmap()] && !ports[servicePort{s.Protocol, s.Port}] {
			continue
		}
		if err := handle.DelService(s); err != nil {
			errs = append(errs, fmt.Errorf("ipvs: delete the virtual server %s: %w", netip.AddrPortFrom(addr, s.Port), err))
			continue
		}
		count++
	}
	if count > 0 {
		r.removed("%d IPVS virtual servers", count)
	}
	return errors.Join(errs...)
}

func deviceAddrs(device netlink.Link) (map[netip.Addr]bool, error) {
	addrs := make(map[netip.Addr]bool)
	if device == nil {
		return addrs, nil
	}
	list, err := rtnl.Addrs(device)
	if err != nil {
		return nil, fmt.Errorf("ipvs: list the addresses of %s: %w", IPVSDevice, err)
	}
	for _, a := range list {
		addr, _ := netip.AddrFromSlice(a.IP)
		addrs[addr.Unmap()] = true
	}
	return addrs, nil
}

// nodePorts reads the NodePorts from kube-proxy's sets.
func nodePorts() (map[servicePort]bool, error) {
	ports := make(map[servicePort]bool)
	for protocol, v4 := range nodePortSets {
		for _, name := range ipSetNames(v4) {
			set, err := netlink.IpsetList(name)
			if noSet(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("ipset: list %s: %w", name, err)
			}
			for _, entry := range set.Entries {
				if entry.Port != nil {
					ports[servicePort{protocol, *entry.Port}] = true
				}
			}
		}
	}
	return ports, nil
}

// noSet reports whether an error says that there is no such set, or that the kernel
// has no sets at all.
func noSet(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// findSet returns nil when there is such a set, whatever it holds. The library's list prints each attribute
// that it does not know.
func findSet(name string) error {
	const command = nl.IPSET_CMD_HEADER
	request := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_NETLINK, Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	request.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// cleanSets removes the sets to which no rule leads any more. Chains that were kept have such rules.
func cleanSets(r *Report) error {
	var errs []error
	for _, v4 := range ipSets {
		for _, name := range ipSetNames(v4) {
			errs = append(errs, destroySet(name, r))
		}
	}
	return errors.Join(errs...)
}

// destroySet removes a set, if there is one and no rule uses it.
func destroySet(name string, r *Report) error {
	err := findSet(name)
	if noSet(err) {
		return nil
	}
	if err == nil {
		err = netlink.IpsetDestroy(name)
	}
	const busy = nl.IPSetError(nl.IPSET_ERR_BUSY)
	// nf_tables lets go of a rule's set some time after the rule is gone, when no CPU reads it any more.
	for attempt := 1; errors.Is(err, busy) && attempt < attempts; attempt++ {
		time.Sleep(100 * time.Millisecond)
		err = netlink.IpsetDestroy(name)
	}
	switch {
	case errors.Is(err, busy):
		r.Kept = append(r.Kept, fmt.Sprintf("set %s: a rule uses it", name))
	case err != nil:
		return fmt.Errorf("ipset: destroy %s: %w", name, err)
	default:
		r.removed("set %s", name)
	}
	return nil
}
