package conntrack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/pause"
)

// Tracks reports whether connections are tracked: whether there is one now.
func (h Host) Tracks() (bool, error) {
	count, err := os.ReadFile(filepath.Join(h.Sysctls, "nf_conntrack_count"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(count)))
	if err != nil {
		return true, fmt.Errorf("count of tracked connections: %w", err)
	}
	return n > 0, nil
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
