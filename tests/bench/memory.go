package main

import (
	"context"

	"github.com/beeline-lb/beeline/pkg/source"
)

// measureMemory measures the kernel memory of all maps of a datapath without a
// Service.
func measureMemory(ctx context.Context, box *sandbox) ([]samples, error) {
	cgroup, err := box.subgroup(beeline)
	if err != nil {
		return nil, err
	}
	d, err := serve(ctx, box, cgroup, source.Update{})
	if err != nil {
		return nil, err
	}
	have, err := d.Maps().Snapshot()
	if err != nil {
		return nil, err
	}
	maps, err := d.Maps().Fill(have)
	if err != nil {
		return nil, err
	}
	var total uint64
	for _, m := range maps {
		total += m.Memory
	}
	s := make(samples)
	s.add("memory/maps", float64(total)/(1<<20))
	return []samples{s}, nil
}
