// Package bounds fails a test when work on an input costs more than an input of that size
// may: a parser of what others write must not be slowed down or filled up by a small one.
package bounds

import (
	"runtime/metrics"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/tests/tier"
)

// What an input may cost: a part that does not depend on its size, and one for each byte.
// Work that grows with the square of the size is beyond it from some kilobytes on. The
// time is CPU time, so other processes do not count. Both leave room for the
// instrumentation of fuzzing and of the race detector.
const (
	baseTime  = 500 * time.Millisecond
	byteTime  = 50 * time.Microsecond
	baseAlloc = 8 << 20
	byteAlloc = 16 << 10
)

// Check calls work, which handles an input of size bytes on this goroutine. Nothing else
// in the process should allocate meanwhile.
func Check(t testing.TB, size int, work func()) {
	t.Helper()
	allocated := heapAllocs()
	took := pause.Work(work)
	used := heapAllocs() - allocated
	if limit := slower() * (baseTime + time.Duration(size)*byteTime); took > limit {
		t.Errorf("%d bytes took %v of CPU time, more than %v", size, took, limit)
	}
	if limit := uint64(baseAlloc + size*byteAlloc); used > limit {
		t.Errorf("%d bytes took %d bytes of memory, more than %d", size, used, limit)
	}
}

// slower is how many times the race detector may slow work down.
func slower() time.Duration {
	if tier.Race {
		return 10
	}
	return 1
}

// heapAllocs returns how many bytes have been allocated since the process began.
func heapAllocs() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
