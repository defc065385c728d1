package file

import (
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"
)

// reading tells how far the reading of a folder is, in the log.
type reading struct {
	dir            string
	of             int // files in the folder
	files, objects int // decoded
	bytes          int
	start, told    time.Time
	now            func() time.Time
	restore        func() // the collector's setting; nil unless the reading is large
}

// readingPeriod is how often it is told.
const readingPeriod = 5 * time.Second

func newReading(dir string, of int) *reading {
	r := &reading{dir: dir, of: of, now: time.Now}
	r.start = r.now()
	r.told = r.start
	return r
}

// object counts an object of a file.
func (r *reading) object() {
	r.objects++
	if now := r.now(); now.Sub(r.told) >= readingPeriod {
		r.told = now
		klog.InfoS("Reading manifests", "dir", r.dir, "files", r.files, "of", r.of, "objects", r.objects,
			"bytes", r.bytes, "took", r.took())
	}
}

// A reading of that many bytes is large. Most of what it allocates is garbage soon, and what
// stays only grows: the collector runs more often, so that the heap is not half garbage at its
// largest.
const (
	largeReading   = 8 << 20
	largeGCPercent = 40
)

// begin counts the bytes of a file that is decoded next.
func (r *reading) begin(size int) {
	r.bytes += size
	if r.bytes < largeReading || r.restore != nil {
		return
	}
	former := debug.SetGCPercent(largeGCPercent)
	if 0 <= former && former < largeGCPercent {
		debug.SetGCPercent(former)
	}
	r.restore = func() { debug.SetGCPercent(former) }
}

// file counts a file that was decoded.
func (r *reading) file() { r.files++ }

// end gives what a large reading leaves behind back to the system.
func (r *reading) end() {
	if r.restore != nil {
		r.restore()
		r.restore = nil
		debug.FreeOSMemory()
	}
}

// took returns the time since the reading began.
func (r *reading) took() time.Duration { return r.now().Sub(r.start).Round(time.Millisecond) }
