package servicemap

import (
	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// endpoints keeps bl_endpoint: the endpoints on this node, by which the programs tell what
// other nodes may send here in the tunnel. An agent that was killed may have left two backends
// that are one endpoint, so they are counted.
type endpoints struct {
	maps  *bpfmap.Maps
	count map[bpf.SockBlEndpointKey]uint32
}

// openEndpoints brings bl_endpoint into agreement with the backends.
func openEndpoints(m *bpfmap.Maps) (*endpoints, error) {
	e := &endpoints{m, make(map[bpf.SockBlEndpointKey]uint32)}
	kernel := make(map[bpf.SockBlEndpointKey]bool)
	err := bpfmap.Each(m.BlEndpoint, func(key *bpf.SockBlEndpointKey, _ *uint32) { kernel[*key] = true })
	if err != nil {
		return nil, err
	}
	for id := range m.Backend.Len() {
		key, ok := writtenEndpoint(m.Backend.At(id))
		if !ok {
			continue
		}
		if !kernel[key] {
			if err := e.add(key); err != nil {
				return nil, err
			}
			kernel[key] = true
			continue
		}
		e.count[key]++
	}
	for key := range kernel {
		if e.count[key] == 0 {
			if err := bpfmap.Remove(m.BlEndpoint, &key); err != nil {
				return nil, err
			}
		}
	}
	return e, nil
}

// replace follows a backend that is written in place of what had its id.
func (e *endpoints) replace(old *bpf.SockBlBackendEntry, b tables.Backend) error {
	before, was := writtenEndpoint(old)
	after, is := endpointOf(b)
	if was == is && (!is || before == after) {
		return nil
	}
	if is {
		if err := e.add(after); err != nil {
			return err
		}
	}
	if was {
		return e.drop(before)
	}
	return nil
}

// add counts one more backend that is the endpoint.
func (e *endpoints) add(key bpf.SockBlEndpointKey) error {
	if e.count[key] == 0 {
		if err := bpfmap.Put(e.maps.BlEndpoint, &key, uint32(1)); err != nil {
			return err
		}
	}
	e.count[key]++
	return nil
}

// drop counts one less.
func (e *endpoints) drop(key bpf.SockBlEndpointKey) error {
	if e.count[key] > 1 {
		e.count[key]--
		return nil
	}
	if err := bpfmap.Remove(e.maps.BlEndpoint, &key); err != nil {
		return err
	}
	delete(e.count, key)
	return nil
}

// writtenEndpoint returns the key of a backend in use that is on this node; else false.
func writtenEndpoint(e *bpf.SockBlBackendEntry) (bpf.SockBlEndpointKey, bool) {
	return endpointKey(e.Addr, e.Port, e.Service), e.State&uint16(bpf.SockBlBackendStateBL_BACKEND_ON_NODE) != 0
}

// endpointOf is writtenEndpoint of a backend that is to be written.
func endpointOf(b tables.Backend) (bpf.SockBlEndpointKey, bool) {
	return endpointKey(bpf.AddrOf(b.AddrPort.Addr()), bpf.Hton16(b.AddrPort.Port()), b.Service), b.State&tables.OnNode != 0
}

func endpointKey(addr bpf.SockBlAddr, port uint16, service uint32) bpf.SockBlEndpointKey {
	return bpf.SockBlEndpointKey{
		PrefixLen: uint32(bpf.SockBlEndpointBitsBL_ENDPOINT_BITS),
		Addr:      addr,
		Port:      port,
		Service:   service,
	}
}
