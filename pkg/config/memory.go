package config

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/fsmount"
)

// The memory of the tables whose size follows from the machine's: the part of it that they
// take, and what they take at least, as long as that is no greater part than leastPart.
const (
	memoryPart  = 400 // 0.25 %
	memoryLeast = 64 << 20
	leastPart   = 50 // 2 %
	// limitPart is what they take of the memory that the agent's cgroup is limited to,
	// which the kernel charges them to.
	limitPart = 4
)

// connectionMemory is the memory of a connection of a client outside of the node: two entries of
// bl_flow, and its part of the tables whose sizes are in proportion to that. TestTableMemory
// measures it.
const connectionMemory = 512

// The bounds of the number of connections; the upper one is kube-proxy's for netfilter.
const (
	minConnections = 4096
	maxConnections = maxTracked
)

// memory is the memory of the machine, in bytes.
type memory struct {
	machine uint64
	limit   uint64 // of the agent's cgroup; 0 is none
}

// budget returns how much the tables take whose size follows from the memory.
func (m memory) budget() uint64 {
	b := uint64(memoryLeast)
	if m.machine > 0 {
		b = max(m.machine/memoryPart, min(memoryLeast, m.machine/leastPart))
	}
	if m.limit > 0 {
		b = min(b, m.limit/limitPart)
	}
	return b
}

// connections returns how many connections there is memory for: a power of two, or the mean
// of two, so that machines that are alike have equal tables.
func (m memory) connections() uint32 {
	n := uint32(minConnections)
	for next := n; next <= maxConnections && uint64(next)*connectionMemory <= m.budget(); {
		n = next
		if next&(next-1) == 0 {
			next += next / 2
		} else {
			next += next / 3
		}
	}
	return n
}

// sizes returns the sizes of tables that are evicted from when they are full.
func (m memory) sizes() bpfmap.Sizes {
	n := m.connections()
	return bpfmap.Sizes{Flows: 2 * n, Clients: n / 2, Affinity: n / 2, UDPPeers: n / 2}
}

// String says what the sizes follow from.
func (m memory) String() string {
	size := func(bytes uint64) string {
		return resource.NewQuantity(int64(bytes>>20<<20), resource.BinarySI).String()
	}
	if m.limit > 0 && m.limit/limitPart < (memory{machine: m.machine}).budget() {
		return fmt.Sprintf("the limit of the agent's cgroup, %s of memory", size(m.limit))
	}
	return fmt.Sprintf("the machine's %s of memory", size(m.machine))
}

// readMemory returns what this machine has. What cannot be read is 0.
func readMemory() (m memory) {
	if proc, err := procfs.NewDefaultFS(); err == nil {
		if info, err := proc.Meminfo(); err == nil && info.MemTotal != nil {
			m.machine = *info.MemTotal << 10
		}
	}
	mounts := cgroupMounts()
	if own, err := fsmount.New("cgroup2"); err == nil {
		defer own.Close()
		mounts = append(mounts, ofNamespace(own, "memory.max"))
	}
	m.limit = cgroupLimit("/proc/self/cgroup", mounts)
	if m.limit >= m.machine {
		m.limit = 0
	}
	return m
}

// cgroupMount is where a hierarchy of cgroups that limits memory may be mounted, and its
// file with the limit.
type cgroupMount struct{ dir, controller, file string }

// ofNamespace returns the hierarchy as the cgroup namespace shows it. The cgroup of a container
// is often the root there, and /proc does not tell by which path it is reached in what the node
// has mounted.
func ofNamespace(own *fsmount.Mount, file string) cgroupMount {
	return cgroupMount{own.Path(), "", file}
}

func cgroupMounts() []cgroupMount {
	mounts := []cgroupMount{
		{"/sys/fs/cgroup", "", "memory.max"},
		{"/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes"},
	}
	if dir, err := datapath.FindCgroup2(); err == nil {
		mounts = append(mounts, cgroupMount{dir, "", "memory.max"})
	}
	return mounts
}

// cgroupLimit returns the least limit of the cgroups that a process is in, by its file in
// /proc; 0 is none.
func cgroupLimit(path string, mounts []cgroupMount) (limit uint64) {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.SplitN(lines.Text(), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for _, m := range mounts {
			if fields[1] != m.controller {
				continue
			}
			for group := filepath.Clean("/" + fields[2]); ; group = filepath.Dir(group) {
				text, err := os.ReadFile(filepath.Join(m.dir, group, m.file))
				if n, parseErr := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && parseErr == nil && n > 0 {
					if limit == 0 || n < limit {
						limit = n
					}
				}
				if group == "/" {
					break
				}
			}
		}
	}
	return limit
}
