package servicemap

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// derivedCheck compares what the maps keep of other entries with these.
type derivedCheck struct {
	m         *bpfmap.Maps
	filter    *filter    // as it should be, in want
	endpoints *endpoints // likewise, in count
	found     []tables.Difference
}

func (c *derivedCheck) add(kind, format string, args ...any) {
	c.found = append(c.found, tables.Difference{Kind: kind, Text: fmt.Sprintf(format, args...)})
}

// take returns what was found since the last call.
func (c *derivedCheck) take() []tables.Difference {
	found := c.found
	c.found = nil
	return found
}

// CheckDerived compares what the maps keep of other entries with these: the filter of frontends,
// the prefix around all Service CIDRs, the endpoints on this node, which node that is, and the device for
// hairpins. It yields what differs after each of many small parts, and writes nothing.
//
// The maps are compared with themselves, digests of frontends too; while an agent writes, a half of
// a change may be found.
func (t Table) CheckDerived() iter.Seq2[[]tables.Difference, error] {
	return func(yield func([]tables.Difference, error) bool) {
		c := &derivedCheck{m: t.maps}
		if err := c.compute(); err != nil {
			yield(nil, err)
			return
		}
		c.run(yield)
	}
}

// CheckDerived is [Table.CheckDerived] for who writes: the maps are compared with what was written,
// and between two parts may be written to.
func (s *Store) CheckDerived() iter.Seq2[[]tables.Difference, error] {
	return (&derivedCheck{s.maps, s.filter, s.endpoints, nil}).run
}

func (c *derivedCheck) run(yield func([]tables.Difference, error) bool) {
	c.frontends()
	c.self()
	err := errors.Join(c.aggregate(), c.hairpin())
	if yield(c.take(), err) {
		c.nodeEndpoints(yield)
	}
}

// compute finds out what the filter and the endpoints should be.
func (c *derivedCheck) compute() error {
	m := c.m
	c.filter = newFilter(&bpf.SockBlFilterEntry{})
	err := bpfmap.Each(m.BlFrontend, func(k *bpf.SockBlFrontendKey, e *bpf.SockBlFrontendEntry) {
		c.filter.add(k)
		if e.Check != frontendCheck(k) {
			c.add("frontend-digest", "frontend %s has a wrong digest of its key", frontendKeyOf(k))
		}
	})
	if err != nil {
		return err
	}
	c.filter.addRings(m)
	c.endpoints = &endpoints{m, make(map[bpf.SockBlEndpointKey]uint32)}
	for id := range m.Backend.Len() {
		if key, ok := writtenEndpoint(m.Backend.At(id)); ok {
			c.endpoints.count[key]++
		}
	}
	return nil
}

// frontends compares the filter with what it should be.
func (c *derivedCheck) frontends() {
	missing, surplus := false, 0
	for i, want := range c.filter.want.Word {
		have := atomic.LoadUint64(&c.m.Entries.Filter.Word[i])
		missing = missing || want&^have != 0
		surplus += bits.OnesCount64(have &^ want)
	}
	if surplus > 0 {
		c.add("filter-surplus", "the filter has %d bits that stand for no frontend", surplus)
	}
	if !missing {
		return
	}
	for k := range c.filter.keys {
		switch bit := filterBit(&k); {
		case atomic.LoadUint64(&c.m.Entries.Filter.Word[bit/64])&(1<<(bit%64)) != 0:
		case k == ringsKey:
			c.add("filter-missing", "the filter says that no Service has the algorithm maglev")
		default:
			c.add("filter-missing", "the filter says that there is no frontend %s", frontendKeyOf(&k))
		}
	}
}

func (c *derivedCheck) aggregate() error {
	want, err := aggregateOf(c.m)
	if have := *c.m.Entries.Aggregate; err == nil && have != want {
		c.add("aggregate", "the prefix around all Service ranges is not the shortest that covers them")
	}
	return err
}

func (c *derivedCheck) hairpin() error {
	holds, err := devicemap.New(c.m).HoldsHairpin()
	if err == nil && !holds {
		c.add("hairpin", "the source addresses of what the host sends to its own endpoints have been changed")
	}
	return err
}

func (c *derivedCheck) self() {
	if !nodemap.New(c.m).HoldsSelf() {
		c.add("node-self", "the programs take another node for this one")
	}
}

// lookups is how many entries a part of a check looks up.
const lookups = 1000

// nodeEndpoints compares bl_endpoint with the backends on this node.
func (c *derivedCheck) nodeEndpoints(yield func([]tables.Difference, error) bool) {
	at := func(key bpf.SockBlEndpointKey) netip.AddrPort {
		return netip.AddrPortFrom(key.Addr.Netip(), bpf.Hton16(key.Port))
	}
	seen, more := 0, true
	err := bpfmap.EachBatch(c.m.BlEndpoint, func(keys []bpf.SockBlEndpointKey, _ []uint32) bool {
		seen += len(keys)
		for _, key := range keys {
			if c.endpoints.count[key] == 0 {
				c.add("endpoint-surplus", "%s accepts tunnel traffic as an endpoint of this node, which it is not", at(key))
			}
		}
		more = yield(c.take(), nil)
		return more
	})
	if err != nil {
		more = yield(nil, err) && more
	}
	if !more || seen == len(c.endpoints.count) {
		return
	}
	var keys []bpf.SockBlEndpointKey
	for key := range c.endpoints.count {
		keys = append(keys, key)
	}
	for some := range slices.Chunk(keys, lookups) {
		var errs []error
		for _, key := range some {
			var value uint32
			err := c.m.BlEndpoint.Lookup(&key, &value)
			if errors.Is(err, ebpf.ErrKeyNotExist) && c.endpoints.count[key] > 0 {
				c.add("endpoint-missing", "endpoint %s of this node accepts no tunnel traffic", at(key))
			} else if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, err)
			}
		}
		if !yield(c.take(), errors.Join(errs...)) {
			return
		}
	}
}

// Rederive writes anew what CheckDerived compares, by what the maps hold.
func (s *Store) Rederive() error {
	fresh, err := Open(s.maps)
	if err != nil {
		return err
	}
	s.filter, s.endpoints = fresh.filter, fresh.endpoints
	nodemap.New(s.maps).FindSelf()
	return s.writeDigests()
}

// writeDigests corrects the digests of frontends.
func (s *Store) writeDigests() error {
	wrong := make(map[bpf.SockBlFrontendKey]bpf.SockBlFrontendEntry)
	err := bpfmap.Each(s.maps.BlFrontend, func(k *bpf.SockBlFrontendKey, e *bpf.SockBlFrontendEntry) {
		if e.Check != frontendCheck(k) {
			e.Check = frontendCheck(k)
			wrong[*k] = *e
		}
	})
	for k, e := range wrong {
		err = errors.Join(err, bpfmap.Put(s.maps.BlFrontend, &k, &e))
	}
	return err
}
