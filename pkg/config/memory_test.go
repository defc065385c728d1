package config

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/fsmount"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// TestSizesByMemory: a machine with enough memory has room for as many connections as
// kube-proxy has netfilter track at least.
func TestSizesByMemory(t *testing.T) {
	const gi = 1 << 30
	for _, tt := range []struct {
		machine, limit uint64
		want           uint32
		by             string
	}{
		{gi / 4, 0, 8192, "the machine's 256Mi of memory"},
		{gi, 0, 32768, "the machine's 1Gi of memory"},
		{4 * gi, 0, 131072, "the machine's 4Gi of memory"},
		{16 * gi, 0, 131072, "the machine's 16Gi of memory"},
		{64 * gi, 0, 262144, "the machine's 64Gi of memory"},
		{256 * gi, 0, 1048576, "the machine's 256Gi of memory"},
		{4096 * gi, 0, 1048576, "the machine's 4Ti of memory"},
		{64 * gi, gi / 8, 65536, "the limit of the agent's cgroup, 128Mi of memory"},
		{64 * gi, 2 * gi, 262144, "the machine's 64Gi of memory"},
		{0, 0, 131072, "the machine's 0 of memory"},
	} {
		m := memory{tt.machine, tt.limit}
		if got := m.connections(); got != tt.want || m.String() != tt.by {
			t.Errorf("%+v: %d connections by %s, want %d by %s", m, got, m, tt.want, tt.by)
		}
	}
}

// TestCgroupLimit takes the least limit of all cgroups that a process is in.
func TestCgroupLimit(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("v2/memory.max", "max\n")
	write("v2/pods/memory.max", "536870912\n")
	write("v2/pods/agent/memory.max", "max\n")
	write("v1/pods/memory.limit_in_bytes", "268435456\n")
	mounts := []cgroupMount{{filepath.Join(dir, "v2"), "", "memory.max"}, {filepath.Join(dir, "v1"), "memory", "memory.limit_in_bytes"}}
	for text, want := range map[string]uint64{
		"0::/pods/agent\n":                   512 << 20,
		"0::/\n":                             0,
		"4:memory:/pods\n0::/\n":             256 << 20,
		"4:memory:/pods\n0::/pods/agent\n":   256 << 20,
		"4:cpu,cpuacct:/pods\n0::/nowhere\n": 0,
		"malformed":                          0,
	} {
		write("cgroup", text)
		if got := cgroupLimit(filepath.Join(dir, "cgroup"), mounts); got != want {
			t.Errorf("%q: limit %d, want %d", text, got, want)
		}
	}
}

// TestCgroupLimitOfAContainer: the cgroup is the root of its cgroup namespace, and the node's
// whole hierarchy is mounted. The limit on the number of cgroups stands for that of memory: no
// controller has to be there for it.
func TestCgroupLimitOfAContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a cgroup")
	}
	node, err := fsmount.New("cgroup2")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	const file, container = "cgroup.max.descendants", "BEELINE_TEST_CONTAINER"
	mounts := []cgroupMount{{node.Path(), "", file}}
	if os.Getenv(container) != "" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			t.Fatal(err)
		}
		const self = "/proc/thread-self/cgroup"
		if got := cgroupLimit(self, mounts); got != 0 {
			t.Errorf("by what the node has mounted: %d, so this test proves nothing", got)
		}
		own, err := fsmount.New("cgroup2")
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		if got := cgroupLimit(self, append(mounts, ofNamespace(own, file))); got != 4321 {
			t.Errorf("limit %d, want 4321", got)
		}
		return
	}
	path, err := os.MkdirTemp(node.Path(), "beeline-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(path)
	group, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	if err := os.WriteFile(filepath.Join(path, file), []byte("4321"), 0); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), container+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd()), Pdeathsig: unix.SIGKILL}
	runtime.LockOSThread() // which the signal comes with the end of
	defer runtime.UnlockOSThread()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in the container: %v\n%s", err, out)
	}
}

// sizingRow is a row of the first table of docs/sizing.md: a machine's memory, the connections
// that there is room for, and the tables' memory.
var sizingRow = regexp.MustCompile(`(?m)^\| (\d+) GiB[^|]* \| ([\d,]+) \| (\d+) MiB \|$`)

// perProcessor is what the counters of Service ports take for each processor while there are few
// of them.
const perProcessor = 64 << 10

// TestTableMemory holds what the tables take to what docs/sizing.md says, and what a
// connection takes to the number that sizes follow from.
func TestTableMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
	memoryOf := func(sizes bpfmap.Sizes) uint64 {
		t.Helper()
		m, err := bpfmap.Load(t.TempDir(), sizes)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		all, err := statusmap.New(m).Memory()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	sizesOf := func(machine uint64) (uint32, bpfmap.Sizes) {
		sizes := bpfmap.DefaultSizes
		m := memory{machine: machine}
		by := m.sizes()
		sizes.Flows, sizes.Clients, sizes.Affinity, sizes.UDPPeers = by.Flows, by.Clients, by.Affinity, by.UDPPeers
		return m.connections(), sizes
	}
	least, small := sizesOf(1)
	fixed := memoryOf(small) - uint64(least)*connectionMemory
	page, err := os.ReadFile("../../docs/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	// What the counters of processors take beyond those of two, as the page has it.
	others := uint64(max(0, ebpf.MustPossibleCPU()-2)) * perProcessor
	rows := sizingRow.FindAllStringSubmatch(string(page), -1)
	if len(rows) < 4 {
		t.Fatalf("docs/sizing.md has the rows %q", rows)
	}
	for _, row := range rows {
		machine, told := number(t, row[1])<<30, number(t, row[3])
		n, sizes := sizesOf(machine)
		all := memoryOf(sizes)
		t.Logf("%4d GiB: %7d connections, %d MiB", machine>>30, n, all>>20)
		if perConnection := float64(all-fixed) / float64(n); perConnection > connectionMemory {
			t.Errorf("%d connections take %.0f bytes each, more than %d", n, perConnection, connectionMemory)
		}
		if mib := (all - others) >> 20; uint64(n) != number(t, row[2]) || mib > told+1 || mib+1 < told {
			t.Errorf("docs/sizing.md says %q, with %d connections the tables take %d MiB", row[0], n, mib)
		}
	}
}

// number reads a number of a document.
func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.ReplaceAll(text, ",", ""), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
