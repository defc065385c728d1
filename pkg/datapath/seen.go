package datapath

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/pause"
)

// seenRest is how many times as long as it worked on what the programs have seen the agent pauses:
// a tenth of a CPU at most, whatever pods do.
const seenRest = 9

// seenBatch is how many records are read at once at most, more than a ring buffer has: programs may
// write as fast as they are read. leastSeenRest passes between two batches.
const (
	seenBatch     = 256
	leastSeenRest = 5 * time.Millisecond
)

// followSeen has what the programs tell by a ring buffer served, until ctx ends. failed is logged
// with the error when that fails; programs tell again.
func followSeen(ctx context.Context, m *ebpf.Map, failed string, serve func(records [][]byte) error) {
	seen, err := ringbuf.NewReader(m)
	if err != nil {
		klog.ErrorS(err, failed)
		return
	}
	defer context.AfterFunc(ctx, func() { seen.Close() })()
	for {
		records, err := readSeen(seen)
		if errors.Is(err, ringbuf.ErrClosed) {
			return
		}
		start := time.Now()
		if err == nil {
			err = serve(records)
		}
		if err != nil {
			klog.ErrorS(err, failed+", trying again")
		}
		if !pause.For(ctx, max(seenRest*time.Since(start), leastSeenRest)) {
			return
		}
	}
}

// readSeen waits for a record and returns those that there are.
func readSeen(seen *ringbuf.Reader) (records [][]byte, err error) {
	for len(records) == 0 || len(records) < seenBatch && seen.AvailableBytes() > 0 {
		record, err := seen.Read()
		if err != nil {
			return nil, err
		}
		records = append(records, record.RawSample)
	}
	return records, nil
}
