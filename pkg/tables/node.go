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

// SetServiceCIDRs replaces the prefixes in which an address without a Service is dropped, and the
// addresses that are not, because another proxy serves them. These are let pass before a prefix
// that has them is put, and until after it is gone.
func (t *Tables) SetServiceCIDRs(want []netip.Prefix, foreign []netip.Addr) error {
	wanted := make(map[netip.Prefix]struct{}, len(want))
	for _, p := range want {
		wanted[p.Masked()] = struct{}{}
	}
	passing := setOf(foreign)
	return errors.Join(
		putMissing(t.foreign, passing, t.store.PutForeign, "address %v of another proxy: %w"),
		putMissing(t.cidrs, wanted, t.store.PutServiceCIDR, "service range %v: %w"),
		deleteOthers(t.cidrs, wanted, t.store.DeleteServiceCIDR, "service range %v: %w"),
		deleteOthers(t.foreign, passing, t.store.DeleteForeign, "address %v of another proxy: %w"),
	)
}

// putMissing puts what have lacks of want, and notes it there.
func putMissing[K comparable](have, want map[K]struct{}, put func(K) error, format string) error {
	var errs []error
	for k := range want {
		if _, ok := have[k]; ok {
			continue
		}
		if err := put(k); err != nil {
			errs = append(errs, fmt.Errorf(format, k, err))
			continue
		}
		have[k] = struct{}{}
	}
	return errors.Join(errs...)
}

// deleteOthers deletes what have has beyond want, and notes it there.
func deleteOthers[K comparable](have, want map[K]struct{}, remove func(K) error, format string) error {
	var errs []error
	for k := range have {
		if _, ok := want[k]; ok {
			continue
		}
		if err := remove(k); err != nil {
			errs = append(errs, fmt.Errorf(format, k, err))
			continue
		}
		delete(have, k)
	}
	return errors.Join(errs...)
}
