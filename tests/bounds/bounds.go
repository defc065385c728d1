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
	Within(t, baseTime+time.Duration(size)*byteTime, uint64(baseAlloc+size*byteAlloc), work)
}

// Within calls work, which may take so much CPU time on this goroutine and allocate so many bytes.
// Nothing else in the process should allocate meanwhile.
func Within(t testing.TB, cpu time.Duration, alloc uint64, work func()) {
	t.Helper()
	took, used := cost(work)
	if limit := slower() * cpu; took > limit {
		t.Errorf("it took %v of CPU time, more than %v", took, limit)
	}
	if used > alloc {
		t.Errorf("it took %d bytes of memory, more than %d", used, alloc)
	}
}

// Allocated calls work and returns how many bytes it has allocated. Nothing else in the process
// should allocate meanwhile.
func Allocated(work func()) uint64 {
	_, used := cost(work)
	return used
}

// cost returns the CPU time of work and how many bytes it has allocated.
func cost(work func()) (took time.Duration, used uint64) {
	before := heapAllocs()
	took = pause.Work(work)
	return took, heapAllocs() - before
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
