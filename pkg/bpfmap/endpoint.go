package bpfmap

import "github.com/beeline-lb/beeline/pkg/tables"

// endpoints keeps bl_endpoint: the endpoints on this node, by which the programs tell what
// other nodes may send here in the tunnel. An agent that was killed may have left two backends
// that are one endpoint, so they are counted.
type endpoints struct {
	maps  *Maps
	count map[sockBlEndpointKey]uint32
}

// openEndpoints brings bl_endpoint into agreement with the backends.
func openEndpoints(m *Maps) (*endpoints, error) {
	e := &endpoints{m, make(map[sockBlEndpointKey]uint32)}
	kernel := make(map[sockBlEndpointKey]bool)
	err := each(m.all[sockMapBlEndpoint], func(key *sockBlEndpointKey, _ *uint32) { kernel[*key] = true })
	if err != nil {
		return nil, err
	}
	for id := range m.backend.len() {
		key, ok := m.backend.at(id).endpoint()
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
			if err := m.remove(sockMapBlEndpoint, &key); err != nil {
				return nil, err
			}
		}
	}
	return e, nil
}

// replace follows a backend that is written in place of what had its id.
func (e *endpoints) replace(old *sockBlBackendEntry, b tables.Backend) error {
	before, was := old.endpoint()
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
func (e *endpoints) add(key sockBlEndpointKey) error {
	if e.count[key] == 0 {
		if err := e.maps.put(sockMapBlEndpoint, &key, uint32(1)); err != nil {
			return err
		}
	}
	e.count[key]++
	return nil
}

// drop counts one less.
func (e *endpoints) drop(key sockBlEndpointKey) error {
	if e.count[key] > 1 {
		e.count[key]--
		return nil
	}
	if err := e.maps.remove(sockMapBlEndpoint, &key); err != nil {
		return err
	}
	delete(e.count, key)
	return nil
}

// endpoint returns the key of a backend in use that is on this node; else false.
func (e *sockBlBackendEntry) endpoint() (sockBlEndpointKey, bool) {
	return endpointKey(e.Addr, e.Port, e.Service), e.State&uint16(sockBlBackendStateBL_BACKEND_ON_NODE) != 0
}

// endpointOf is endpoint of a backend that is to be written.
func endpointOf(b tables.Backend) (sockBlEndpointKey, bool) {
	return endpointKey(addrOf(b.AddrPort.Addr()), hton16(b.AddrPort.Port()), b.Service), b.State&tables.OnNode != 0
}

func endpointKey(addr sockBlAddr, port uint16, service uint32) sockBlEndpointKey {
	return sockBlEndpointKey{
		PrefixLen: uint32(sockBlEndpointBitsBL_ENDPOINT_BITS),
		Addr:      addr,
		Port:      port,
		Service:   service,
	}
}
