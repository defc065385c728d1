package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/pause"
)

// portsInterval passes between two reads of the settings: the kernel reports no change.
const portsInterval = time.Second

// FollowSourcePorts tells the ephemeral port range, which the kernel uses for connections of its own
// processes, and which are reserved, at first and whenever known returns others, until ctx ends. again says that
// the same have been told before.
func FollowSourcePorts(ctx context.Context, known func() bpfmap.SourcePorts, tell func(ports bpfmap.SourcePorts, again bool)) {
	followSourcePorts(ctx, "/proc/sys/net/ipv4", known, tell)
}

// SourcePorts returns what FollowSourcePorts tells, of the network namespace of the calling thread.
func SourcePorts() (bpfmap.SourcePorts, error) { return readSourcePorts("/proc/sys/net/ipv4") }

func followSourcePorts(ctx context.Context, dir string, known func() bpfmap.SourcePorts, tell func(bpfmap.SourcePorts, bool)) {
	var told bpfmap.SourcePorts
	failed := false
	for {
		ports, err := readSourcePorts(dir)
		if err != nil && !failed {
			klog.ErrorS(err, "The node's ephemeral and reserved ports could not be read", "assumed", told)
		}
		if failed = err != nil; !failed && (ports != told || ports != known()) {
			tell(ports, ports == told)
			told = ports
		}
		if !pause.For(ctx, portsInterval) {
			return
		}
	}
}

// readSourcePorts reads ip_local_port_range and ip_local_reserved_ports.
func readSourcePorts(dir string) (p bpfmap.SourcePorts, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "ip_local_port_range"))
	if err != nil {
		return p, err
	}
	if _, err := fmt.Sscan(string(text), &p.LocalMin, &p.LocalMax); err != nil {
		return p, fmt.Errorf("read ip_local_port_range %q: %w", text, err)
	}
	if text, err = os.ReadFile(filepath.Join(dir, "ip_local_reserved_ports")); err != nil {
		return p, err
	}
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		if part == "" {
			continue
		}
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return p, fmt.Errorf("read ip_local_reserved_ports %q: %w", text, err)
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil {
			return p, fmt.Errorf("read ip_local_reserved_ports %q: %w", text, err)
		}
		for ; from <= to; from++ {
			p.Reserved[from/64] |= 1 << (from % 64)
		}
	}
	return p, nil
}
