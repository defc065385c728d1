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
		err := t.cover(p)
		if err == nil {
			err = t.store.PutServiceCIDR(p)
		}
		if err != nil {
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

// widen lets the programs look for the frontend. What they look for is never
// narrowed while the agent runs: a lookup too many does no harm.
func (t *Tables) widen(f DesiredFrontend) error {
	switch f.Kind {
	case FrontendClusterIP:
		return t.cover(netip.PrefixFrom(f.Key.Addr, f.Key.Addr.BitLen()))
	case FrontendNodePort:
		next := t.runtime
		if next.NodePortMin > next.NodePortMax {
			next.NodePortMin, next.NodePortMax = f.Key.Port, f.Key.Port
		}
		next.NodePortMin = min(next.NodePortMin, f.Key.Port)
		next.NodePortMax = max(next.NodePortMax, f.Key.Port)
		return t.putRuntime(next)
	}
	return nil
}

// cover widens the prefix in which the programs look for undeclared ports.
func (t *Tables) cover(p netip.Prefix) error {
	next := t.runtime
	if p.Addr().Is4() {
		next.Cover4 = join(next.Cover4, p)
	} else {
		next.Cover6 = join(next.Cover6, p)
	}
	return t.putRuntime(next)
}

func (t *Tables) putRuntime(next Runtime) error {
	if next == t.runtime {
		return nil
	}
	if err := t.store.PutRuntime(next); err != nil {
		return err
	}
	t.runtime = next
	return nil
}

// join returns the longest prefix that holds both. An invalid a is nothing.
func join(a, b netip.Prefix) netip.Prefix {
	if !a.IsValid() {
		return b.Masked()
	}
	for bits := min(a.Bits(), b.Bits()); ; bits-- {
		p := netip.PrefixFrom(a.Addr(), bits).Masked()
		if p.Contains(b.Addr()) {
			return p
		}
	}
}
