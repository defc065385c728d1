package conntrack

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/pause"
)

// Tracks reports whether connections are tracked: whether there is one now.
func (h Host) Tracks() (bool, error) {
	n, err := read(filepath.Join(h.Sysctls, "nf_conntrack_count"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return n > 0 || err != nil, err
}

// Follow reports once a second whether connections are tracked, until ctx ends. Where that
// cannot be seen, there are some.
func (h Host) Follow(ctx context.Context, told func(some bool) error) {
	logged := false
	for {
		some, err := h.Tracks()
		if err = errors.Join(err, told(some)); err != nil && !logged {
			klog.ErrorS(err, "Whether netfilter tracks connections is not known; conntrack is asked for each new flow")
		}
		logged = err != nil
		if !pause.For(ctx, time.Second) {
			return
		}
	}
}
