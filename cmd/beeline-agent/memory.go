package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// leastHeap is the least limit of the Go heap, however little memory there is.
const leastHeap = 32 << 20

// limitHeap keeps the Go heap within the limit of the agent's cgroup, bytes, to which the
// kernel charges the tables, too, as large as they are now. GOMEMLIMIT goes before; limit 0 is
// none.
func limitHeap(limit uint64, maps *bpfmap.Maps) error {
	if limit == 0 || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	used, err := statusmap.New(maps).Memory()
	if err != nil {
		return err
	}
	heap := max(leastHeap, int64(limit/10*9)-int64(used))
	if debug.SetMemoryLimit(heap) == heap {
		return nil
	}
	klog.InfoS("Memory is limited", "limitBytes", limit, "tablesBytes", used, "heapBytes", heap)
	return nil
}

// followHeap limits the heap again as tables grow.
func (a *agent) followHeap(ctx context.Context) {
	for pause.For(ctx, time.Minute) {
		if err := limitHeap(a.config.MemoryLimit, a.datapath.Maps()); err != nil {
			klog.ErrorS(err, "The limit of memory does not follow the tables")
		}
	}
}
