package netns_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// memoryCgroups is where the threads of a process can be in several cgroups of memory (cgroup v1).
const memoryCgroups = "/sys/fs/cgroup/memory"

// perSocket is what docs/sizing.md says that a socket takes of the agent's memory.
var perSocket = regexp.MustCompile(`([\d.]+) KiB for each open TCP connection`)

// TestSocketMemory: what sockets of others take of the memory of the agent, who has made the map, is what
// docs/sizing.md says.
func TestSocketMemory(t *testing.T) {
	tier.SameInEveryKernel(t)
	agent, err := os.MkdirTemp(memoryCgroups, "beeline-test-")
	if err != nil {
		t.Skipf("needs the controller memory of cgroup v1: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(agent); err != nil {
			t.Error(err)
		}
	})
	page, err := os.ReadFile("../../docs/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	m := perSocket.FindSubmatch(page)
	if m == nil {
		t.Fatalf("docs/sizing.md has no %q", perSocket)
	}
	told, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	const sockets = 8000 // as many files are open, which is below most limits

	h := lab.NewHost(t)
	in := func(cgroup string) {
		t.Helper()
		if err := h.Run(func() error {
			return os.WriteFile(filepath.Join(cgroup, "tasks"), []byte(strconv.Itoa(unix.Gettid())), 0)
		}); err != nil {
			t.Fatal(err)
		}
	}
	own := memoryCgroup(t)
	in(agent)
	defer in(own)
	a := h.Serve(lab.AgentOptions{ServiceRanges: serviceRanges})
	in(own)
	applyDual(a)
	used := func() int {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(agent, "memory.kmem.usage_in_bytes"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	start := used()
	open := make([]int, 0, sockets)
	to := &unix.SockaddrInet4{Addr: dualTCP4.Addr().As4(), Port: int(dualTCP4.Port())}
	err = h.Pod.Run(func() error {
		for range sockets {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			open = append(open, s)
			if err := unix.Connect(s, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
				return err
			}
		}
		return nil
	})
	grown := float64(used() - start)
	for _, s := range open {
		_ = unix.Close(s) // nothing was written to it
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f bytes for each of %d sockets, %v KiB told", grown/sockets, sockets, told)
	// The kernel charges some pages ahead on each processor.
	const ahead = 1 << 20
	if most := told*1024*sockets + ahead; grown > most || grown < told*1024*sockets/2 {
		t.Errorf("%d sockets took %.0f bytes of the agent's memory, docs/sizing.md says %.0f", sockets, grown, told*1024*sockets)
	}
}

// memoryCgroup returns the cgroup of memory of this process.
func memoryCgroup(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, path, ok := strings.Cut(line, ":memory:"); ok {
			return filepath.Join(memoryCgroups, strings.TrimSpace(path))
		}
	}
	t.Fatalf("no cgroup of memory in\n%s", text)
	return ""
}
