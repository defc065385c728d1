package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// leastHeap is the least limit of the Go heap, however little memory there is.
const leastHeap = 32 << 20

// limitHeap keeps the Go heap within the limit of the agent's cgroup, bytes, to which the
// kernel charges the tables, too, of which used bytes are as large as they are now. GOMEMLIMIT goes
// before; limit 0 is none.
func limitHeap(limit, used uint64) {
	if limit == 0 || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	heap := max(leastHeap, int64(limit/10*9)-int64(used))
	if debug.SetMemoryLimit(heap) == heap {
		return
	}
	klog.InfoS("Memory is limited", "limitBytes", limit, "tablesBytes", used, "heapBytes", heap)
}

// What is on the heap at least, whatever Services are like: of the program, and of each Service port
// and each endpoint in the tables. Those of one port take up to twice as much for it.
const (
	heapOfProgram  = 8 << 20
	heapOfPort     = 2 << 10
	heapOfEndpoint = 200
)

// leastLimit returns the least memory limit for what the tables hold, which take used bytes: nine tenths of
// it are the tables and the heap. Tables that a former agent has filled are those that this one will have.
func leastLimit(used uint64, maps *bpfmap.Maps) uint64 {
	ports, endpoints := servicemap.New(maps).InUse()
	heap := heapOfProgram + uint64(ports)*heapOfPort + uint64(endpoints)*heapOfEndpoint
	return (used + heap) / 9 * 10
}

// limitHeap limits the heap, and tells when the limit of the agent's cgroup is too small, until it is not.
func (a *agent) limitHeap() error {
	limit, maps := a.config.MemoryLimit, a.datapath.Maps()
	if limit == 0 {
		return nil
	}
	used, err := statusmap.New(maps).Memory()
	if err != nil {
		return err
	}
	limitHeap(limit, used)
	least := leastLimit(used, maps)
	if short := least > limit; !a.memoryShort.Swap(short) && short {
		klog.ErrorS(nil, "The memory limit is too small for the Services in the tables: the kernel may end the agent again and again, raise the limit",
			"limitBytes", limit, "leastBytes", least)
	}
	return nil
}

// followHeap limits the heap again as tables grow.
func (a *agent) followHeap(ctx context.Context) {
	for pause.For(ctx, time.Minute) {
		if err := a.limitHeap(); err != nil {
			klog.ErrorS(err, "The limit of memory does not follow the tables")
		}
	}
}
