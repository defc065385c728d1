package statusmap

import (
	"fmt"

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
	for i := uint32(0); uint32(len(stats)) < end; i++ {
		chunk, err := bpfmap.Chunk(outer, i)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
		}
		stats, err = appendStats(stats, chunk, end-uint32(len(stats)))
		chunk.Close()
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
		}
	}
	return stats, nil
}

// appendStats adds up to count entries of a chunk, summed over the CPUs.
func appendStats(stats []ServiceStat, chunk *ebpf.Map, count uint32) ([]ServiceStat, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	count = min(count, chunk.MaxEntries())
	keys := make([]uint32, count)
	values := make([]bpf.SockBlServiceStatEntry, int(count)*cpus)
	var cursor ebpf.MapBatchCursor
	if _, err := chunk.BatchLookup(&cursor, keys, values, nil); err != nil && count < chunk.MaxEntries() {
		return nil, err
	}
	for i := range count {
		var s ServiceStat
		for _, v := range values[int(i)*cpus : int(i+1)*cpus] {
			s.Connections += v.Connections
			s.Refused += v.Refused
			s.Dropped += v.Dropped
		}
		stats = append(stats, s)
	}
	return stats, nil
}
