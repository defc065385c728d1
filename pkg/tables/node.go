package tables

import (
	"errors"
	"fmt"
	"net/netip"
)

// SetNodeAddrs replaces the addresses that NodePorts answer on.
func (t *Tables) SetNodeAddrs(want map[netip.Addr]NodeAddr) error {
	var errs []error
	for addr, a := range want {
		if have, ok := t.nodeAddrs[addr]; ok && have == a {
			continue
		}
		if err := t.store.PutNodeAddr(addr, a); err != nil {
			errs = append(errs, fmt.Errorf("node address %s: %w", addr, err))
			continue
		}
		t.nodeAddrs[addr] = a
	}
	for addr := range t.nodeAddrs {
		if _, ok := want[addr]; ok {
			continue
		}
		if err := t.store.DeleteNodeAddr(addr); err != nil {
			errs = append(errs, fmt.Errorf("node address %s: %w", addr, err))
			continue
		}
		delete(t.nodeAddrs, addr)
	}
	return errors.Join(errs...)
}

// SetServiceCIDRs replaces the prefixes in which an address without a Service is
// dropped.
func (t *Tables) SetServiceCIDRs(want []netip.Prefix) error {
	var errs []error
	wanted := make(map[netip.Prefix]bool, len(want))
	for _, p := range want {
		p = p.Masked()
		wanted[p] = true
		if _, ok := t.cidrs[p]; ok {
			continue
		}
		if err := t.store.PutServiceCIDR(p); err != nil {
			errs = append(errs, fmt.Errorf("service range %s: %w", p, err))
			continue
		}
		t.cidrs[p] = struct{}{}
	}
	for p := range t.cidrs {
		if wanted[p] {
			continue
		}
		if err := t.store.DeleteServiceCIDR(p); err != nil {
			errs = append(errs, fmt.Errorf("service range %s: %w", p, err))
			continue
		}
		delete(t.cidrs, p)
	}
	return errors.Join(errs...)
}
