package statusmap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// Traffic are the packets and bytes of clients outside of the node's sockets, estimated from a sample
// of their flows.
type Traffic struct {
	ToBackend, ToClient Volume
}

// Volume is how much has been translated. Bytes count from the IP header on.
type Volume struct {
	Packets, Bytes uint64
}

// Traffics are what has been counted by id, of those that have had traffic.
type Traffics struct {
	Services map[uint32]Traffic
	Backends map[uint32]Traffic
}

// Traffic returns what has been counted; nil when nothing is.
func (t Table) Traffic() (*Traffics, error) {
	table := t.maps.BlTraffic
	if !t.maps.CountsTraffic() {
		return nil, nil
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	const batch = 512 // more than any bucket holds
	all := &Traffics{make(map[uint32]Traffic), make(map[uint32]Traffic)}
	keys, values := make([]bpf.SockBlTrafficKey, batch), make([]bpf.SockBlTrafficEntry, batch*cpus)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := table.BatchLookup(&cursor, keys, values, nil)
		for i, key := range keys[:n] {
			of := all.Backends
			if key.Kind == uint32(bpf.SockBlTrafficKindBL_TRAFFIC_SERVICE) {
				of = all.Services
			}
			of[key.Id] = sumTraffic(values[i*cpus : (i+1)*cpus])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", bpf.SockMapBlTraffic, err)
		}
	}
}

// sumTraffic adds what each CPU has counted.
func sumTraffic(perCPU []bpf.SockBlTrafficEntry) (t Traffic) {
	for i := range perCPU {
		t.ToBackend.add(perCPU[i].ToBackend.Packets, perCPU[i].ToBackend.Bytes)
		t.ToClient.add(perCPU[i].ToClient.Packets, perCPU[i].ToClient.Bytes)
	}
	return t
}

func (v *Volume) add(packets, bytes uint64) {
	v.Packets += packets
	v.Bytes += bytes
}
