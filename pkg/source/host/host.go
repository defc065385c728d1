// Package host follows the addresses of the machine that the agent runs on.
package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// retry is how long to wait after the addresses could not be listed.
const retry = 10 * time.Second

// Addresses returns the unicast addresses of all devices in the network
// namespace of the calling thread, sorted; IPv6 link-local ones, which mean
// nothing without their device, are left out, and those of kube-proxy's mode ipvs, which are Services' (as kube-proxy
// v1.36 does, by GetAllLocalAddressesExcept).
func Addresses() ([]netip.Addr, error) {
	list, err := rtnl.Addrs(nil)
	if err != nil {
		return nil, err
	}
	ipvs := 0 // no device's
	if link, err := netlink.LinkByName(kubeproxy.IPVSDevice); err == nil {
		ipvs = link.Attrs().Index
	} else if notFound := (netlink.LinkNotFoundError{}); !errors.As(err, &notFound) {
		return nil, fmt.Errorf("look for device %s: %w", kubeproxy.IPVSDevice, err)
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.Flags&unix.IFA_F_TENTATIVE != 0 || a.LinkIndex == ipvs {
			continue
		}
		addr = addr.Unmap()
		if addr.IsMulticast() || addr.Is6() && addr.IsLinkLocalUnicast() {
			continue
		}
		addrs = append(addrs, addr)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

// Watch calls changed with the local addresses, at once and soon after every change, until
// ctx ends.
func Watch(ctx context.Context, changed func([]netip.Addr)) {
	var last []netip.Addr
	told := false
	list := func(bool) (again time.Duration) {
		addrs, err := Addresses()
		if err != nil {
			klog.ErrorS(err, "Local addresses could not be listed, trying again", "in", retry)
			return retry
		}
		if !told || !slices.Equal(addrs, last) {
			changed(addrs)
			told, last = true, addrs
		}
		return 0
	}
	// Each pod's device comes with an address of the link, which is none of these.
	matters := func(u *netlink.AddrUpdate) bool {
		return u.LinkAddress.IP.To4() != nil || !u.LinkAddress.IP.IsLinkLocalUnicast()
	}
	rtnl.Follow(ctx, rtnl.Handlers{Addr: matters}, nil, list)
}
