package main

import (
	"context"

	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/statusmap"
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
	total, err := statusmap.New(d.Maps()).Memory()
	if err != nil {
		return nil, err
	}
	s := make(samples)
	s.add("memory/maps", float64(total)/(1<<20))
	return []samples{s}, nil
}
