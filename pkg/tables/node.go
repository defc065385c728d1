package tables

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// SetNodeAddrs replaces the addresses that NodePorts answer on. Those that are gone make room first, and so do not
// take it from the node's own IPs, nor do others: these are put first, and loopback.
func (t *Tables) SetNodeAddrs(want map[netip.Addr]NodeAddr, own []netip.Addr) error {
	errs := []error{deleteOthers(t.nodeAddrs, want, t.store.DeleteNodeAddr, "node address %v: %w")}
	rank := func(addr netip.Addr) int {
		if slices.Contains(own, addr) || want[addr].HostOnly {
			return 0
		}
		return 1
	}
	for _, addr := range slices.SortedFunc(maps.Keys(want), func(a, b netip.Addr) int {
		return cmp.Or(rank(a)-rank(b), a.Compare(b))
	}) {
		if have, ok := t.nodeAddrs[addr]; ok && have == want[addr] {
			continue
		}
		if err := t.store.PutNodeAddr(addr, want[addr]); err != nil {
			errs = append(errs, fmt.Errorf("node address %v: %w", addr, err))
			continue
		}
		t.nodeAddrs[addr] = want[addr]
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
func deleteOthers[K comparable, V any](have, want map[K]V, remove func(K) error, format string) error {
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
