package bpfmap

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// derivedCheck collects faults.
type derivedCheck struct {
	m    *Maps
	list []tables.Difference
}

func (c *derivedCheck) add(kind, format string, args ...any) {
	c.list = append(c.list, tables.Difference{Kind: kind, Text: fmt.Sprintf(format, args...)})
}

// CheckDerived compares what the maps keep of other entries with these: the filter and the digests
// of frontends, the prefix around all Service CIDRs, the endpoints on this node, and the device
// for hairpins. While an agent writes, a half of a change may be found. It writes nothing.
func (m *Maps) CheckDerived() ([]tables.Difference, error) {
	c := &derivedCheck{m: m}
	err := errors.Join(c.frontends(), c.aggregate(), c.endpoints(), c.hairpin())
	return c.list, err
}

// frontends compares the filter and the digests with the frontends.
func (c *derivedCheck) frontends() error {
	filter := c.m.Entries.Filter
	set := func(bit uint32) bool { return atomic.LoadUint64(&filter.Word[bit/64])&(1<<(bit%64)) != 0 }
	want := make(map[uint32]struct{})
	err := Each(c.m.BlFrontend, func(k *bpf.SockBlFrontendKey, e *bpf.SockBlFrontendEntry) {
		bit, key := filterBit(k), frontendKeyOf(k)
		want[bit] = struct{}{}
		if !set(bit) {
			c.add("filter-missing", "the filter says that there is no frontend %s", key)
		}
		if e.Check != frontendCheck(k) {
			c.add("frontend-digest", "frontend %s has a wrong digest of its key", key)
		}
	})
	if c.m.anyRing() {
		bit := filterBit(&ringsKey)
		want[bit] = struct{}{}
		if !set(bit) {
			c.add("filter-missing", "the filter says that no Service has the algorithm maglev")
		}
	}
	surplus := 0
	for i := range filter.Word {
		for word := atomic.LoadUint64(&filter.Word[i]); word != 0; word &= word - 1 {
			if _, ok := want[uint32(i)*64+uint32(bits.TrailingZeros64(word))]; !ok {
				surplus++
			}
		}
	}
	if surplus > 0 {
		c.add("filter-surplus", "the filter has %d bits that stand for no frontend", surplus)
	}
	return err
}

// anyRing reports whether a Service port has the algorithm BL_ALGORITHM_MAGLEV.
func (m *Maps) anyRing() bool {
	for id := range m.service.len() {
		if m.service.at(id).Algorithm == uint16(bpf.SockBlAlgorithmBL_ALGORITHM_MAGLEV) {
			return true
		}
	}
	return false
}

func (c *derivedCheck) aggregate() error {
	want, err := c.m.aggregate()
	if have := *c.m.Entries.Aggregate; err == nil && have != want {
		c.add("aggregate", "the prefix around all Service ranges is not the shortest that covers them")
	}
	return err
}

// endpoints compares bl_endpoint with the backends on this node.
func (c *derivedCheck) endpoints() error {
	have := make(map[bpf.SockBlEndpointKey]bool)
	err := Each(c.m.BlEndpoint, func(key *bpf.SockBlEndpointKey, _ *uint32) { have[*key] = true })
	if err != nil {
		return err
	}
	want := make(map[bpf.SockBlEndpointKey]bool)
	at := func(key bpf.SockBlEndpointKey) netip.AddrPort {
		return netip.AddrPortFrom(key.Addr.Netip(), bpf.Hton16(key.Port))
	}
	for id := range c.m.backend.len() {
		key, ok := writtenEndpoint(c.m.backend.at(id))
		if ok && !want[key] && !have[key] {
			c.add("endpoint-missing", "endpoint %s of this node accepts no tunnel traffic", at(key))
		}
		if ok {
			want[key] = true
		}
	}
	for key := range have {
		if !want[key] {
			c.add("endpoint-surplus", "%s accepts tunnel traffic as an endpoint of this node, which it is not", at(key))
		}
	}
	return nil
}

func (c *derivedCheck) hairpin() error {
	var have bpf.SockBlDeviceEntry
	err := c.m.BlDevice.Lookup(uint32(bpf.SockBlDeviceLimitBL_DEVICE_HAIRPIN), &have)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if want := hairpinEntry(); err == nil && have != want {
		c.add("hairpin", "the source addresses of what the host sends to its own endpoints have been changed")
	}
	return err
}

// Rederive writes anew what CheckDerived compares.
func (m *Maps) Rederive() error {
	filter, err := openFilter(m)
	if err != nil {
		return err
	}
	endpoints, err := openEndpoints(m)
	if err != nil {
		return err
	}
	m.filter, m.endpoints = filter, endpoints
	return errors.Join(m.writeAggregate(), m.writeHairpin(), m.writeDigests())
}

// writeDigests corrects the digests of frontends.
func (m *Maps) writeDigests() error {
	wrong := make(map[bpf.SockBlFrontendKey]bpf.SockBlFrontendEntry)
	err := Each(m.BlFrontend, func(k *bpf.SockBlFrontendKey, e *bpf.SockBlFrontendEntry) {
		if e.Check != frontendCheck(k) {
			e.Check = frontendCheck(k)
			wrong[*k] = *e
		}
	})
	for k, e := range wrong {
		err = errors.Join(err, Put(m.BlFrontend, &k, &e))
	}
	return err
}
