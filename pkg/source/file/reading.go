package file

import (
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

// file counts a file of that many bytes.
func (r *reading) file(size int) {
	r.files++
	r.bytes += size
}

// took returns the time since the reading began.
func (r *reading) took() time.Duration { return r.now().Sub(r.start).Round(time.Millisecond) }
