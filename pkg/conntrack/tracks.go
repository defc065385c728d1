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
	n, err := h.number("nf_conntrack_count")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return n > 0 || err != nil, err
}

// number reads one of the settings.
func (h Host) number(name string) (int, error) {
	content, err := os.ReadFile(filepath.Join(h.Sysctls, name))
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
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
