package statusmap

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// ServiceStat counts what happened at a Service's frontends.
type ServiceStat struct {
	Connections uint64
	Refused     uint64 // rejected or dropped
	Dropped     uint64 // of those
}

// ServiceStats returns the counters of the Service ids below end.
func (t Table) ServiceStats(end uint32) ([]ServiceStat, error) {
	stats := make([]ServiceStat, 0, end)
	outer := t.maps.BlServiceStat
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	for i := uint32(0); uint32(len(stats)) < end; i++ {
		chunk, err := bpfmap.Chunk(outer, i)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
		}
		err = bpfmap.EachBatch(chunk, func(_ []uint32, values []bpf.SockBlServiceStatEntry) bool {
			for each := range slices.Chunk(values, cpus) {
				if uint32(len(stats)) == end {
					return false
				}
				stats = append(stats, sum(each))
			}
			return uint32(len(stats)) < end
		})
		chunk.Close()
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
		}
	}
	return stats, nil
}

// sum adds up what the CPUs have counted.
func sum(values []bpf.SockBlServiceStatEntry) ServiceStat {
	var s ServiceStat
	for _, v := range values {
		s.Connections += v.Connections
		s.Refused += v.Refused
		s.Dropped += v.Dropped
	}
	return s
}
