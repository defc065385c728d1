package lab

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

// build builds the agent once.
var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(tier.AgentEnv); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "agent-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "beeline-agent")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "github.com/beeline-lb/beeline/cmd/beeline-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return path, nil
})

// AgentBinary returns the path of beeline-agent. The test is skipped where there
// is neither a binary nor a Go toolchain.
func AgentBinary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("set %s to the agent's path: %v", tier.AgentEnv, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// FormerAgent returns the path of beeline-agent as it was at a commit. The test is skipped where
// the history lacks that.
func FormerAgent(t testing.TB, commit string) string {
	t.Helper()
	path, err := programs.FormerAgent(t.Context(), commit)
	if errors.Is(err, programs.ErrNoHistory) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// EachFormerAgent runs a test for each version of which a map has another layout, by the map's name
// and the path of beeline-agent.
func EachFormerAgent(t *testing.T, test func(t *testing.T, changed, binary string)) {
	t.Helper()
	for changed, commit := range programs.FormerLayouts {
		t.Run(changed, func(t *testing.T) {
			t.Parallel()
			tier.Slow(t, "builds a former version")
			test(t, changed, FormerAgent(t, commit))
		})
	}
}

// IPTables returns a folder in which the programs of iptables are those of one kind, "nft" or "legacy".
func IPTables(t testing.TB, kind string) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			target, err := exec.LookPath(program + "-" + kind + what)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, filepath.Join(dir, program+what)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// Standalone is a beeline-agent that serves a folder of manifests on a host, with
// what it needs to be started again.
type Standalone struct {
	*Process
	Manifests string
	// Former is the path of an agent of another version, "" for the one that is tested.
	Former string
	host   *Host
	state  string
}

// NewStandalone makes the folders of an agent and writes a first file of
// manifests.
func (h *Host) NewStandalone(manifests ...string) *Standalone {
	h.t.Helper()
	s := &Standalone{host: h, Manifests: h.t.TempDir(), state: h.t.TempDir()}
	s.Write("first.yaml", manifests...)
	return s
}

// Write writes a file of manifests, at once as a whole.
func (s *Standalone) Write(name string, manifests ...string) {
	s.host.t.Helper()
	temporary := filepath.Join(s.Manifests, name+".new")
	if err := os.WriteFile(temporary, []byte(strings.Join(manifests, "---\n")), 0o600); err != nil {
		s.host.t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(s.Manifests, name)); err != nil {
		s.host.t.Fatal(err)
	}
}

// Remove removes a file of manifests.
func (s *Standalone) Remove(name string) {
	s.host.t.Helper()
	if err := os.Remove(filepath.Join(s.Manifests, name)); err != nil {
		s.host.t.Fatal(err)
	}
}

// Launch starts the agent without waiting until it serves.
func (s *Standalone) Launch(flags ...string) *Process {
	s.host.t.Helper()
	binary, args := s.command(flags)
	return s.host.Start(binary, args...)
}

// LaunchWatched is [Standalone.Launch] with [Namespace.StartWatched].
func (s *Standalone) LaunchWatched(writes WatchedWrites, kill int64, flags ...string) *Writes {
	s.host.t.Helper()
	binary, args := s.command(flags)
	w := s.host.StartWatched(writes, kill, binary, args...)
	s.Process = w.Process
	return w
}

func (s *Standalone) command(flags []string) (binary string, args []string) {
	s.host.t.Helper()
	binary = s.Former
	if binary == "" {
		binary = AgentBinary(s.host.t)
	}
	return binary, append([]string{
		"--manifests", s.Manifests, "--state-dir", s.state,
		"--cgroup-root", s.host.Cgroup, "--bpffs", s.host.BPFFS,
		"--hostname-override", NodeName, "--service-cluster-ip-range", "10.96.0.0/16,fd96::/112",
		"--max-flows", fmt.Sprint(Sizes.Flows), "--max-clients", fmt.Sprint(Sizes.Clients),
		"--max-affinity-entries", fmt.Sprint(Sizes.Affinity), "--max-udp-peers", fmt.Sprint(Sizes.UDPPeers),
	}, flags...)
}

// Start starts the agent and returns when it serves.
func (s *Standalone) Start(flags ...string) {
	s.host.t.Helper()
	s.Process = s.Launch(flags...)
	if !s.AwaitServing() {
		s.host.t.Fatalf("the agent ended: %v", s.Wait())
	}
}

// AwaitServing waits until the agent serves, or has ended, and reports which.
func (s *Standalone) AwaitServing() bool {
	s.host.t.Helper()
	Eventually(s.host.t, "the agent serves", func() bool {
		return s.serves() || s.Ended()
	})
	return !s.Ended()
}

// serves reports whether this process has made its first sync.
func (s *Standalone) serves() bool {
	if s.Former != "" { // its maps may have other layouts
		resp, err := s.host.HTTPClient().Get("http://127.0.0.1:10256/healthz")
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	}
	maps, err := bpfmap.Open(datapath.Dir(s.host.BPFFS))
	if err != nil {
		return false
	}
	defer maps.Close()
	agent := statusmap.New(maps).Agent()
	return agent.PID == s.PID() && !agent.Synced.IsZero()
}
