package statusmap

import (
	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// Traffic are packets and bytes: of clients outside of the node estimated from a sample of their
// flows, of its own TCP sockets as the kernel has counted them until the connection ended.
type Traffic struct {
	ToBackend, ToClient Volume
}

// Volume is how much has gone through. Bytes count from the IP header on, which is estimated of sockets.
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
	if !t.maps.CountsTraffic() {
		return nil, nil
	}
	all := &Traffics{make(map[uint32]Traffic), make(map[uint32]Traffic)}
	err := bpfmap.EachBatch(t.maps.BlTraffic, func(keys []bpf.SockBlTrafficKey, values []bpf.SockBlTrafficEntry) bool {
		cpus := len(values) / len(keys)
		for i, key := range keys {
			of := all.Backends
			if key.Kind == uint32(bpf.SockBlTrafficKindBL_TRAFFIC_SERVICE) {
				of = all.Services
			}
			of[key.Id] = sumTraffic(values[i*cpus : (i+1)*cpus])
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	return all, nil
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
