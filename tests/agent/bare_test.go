package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
)

// bareNode is run in a mount namespace of its own: it leaves nothing mounted at
// /sys/fs/bpf, prepares what PREPARE says and becomes the agent.
const bareNode = `
while mountpoint -q /sys/fs/bpf; do umount /sys/fs/bpf; done
eval "$PREPARE"
exec "$@"`

// startBare starts an agent in the mount namespace of a node without a BPF file system.
func startBare(t *testing.T, h *lab.Host, prepare string, flags ...string) *lab.Process {
	t.Helper()
	lab.Need(t, "unshare", "mountpoint")
	return h.Start("env", append([]string{"PREPARE=" + prepare, "unshare", "--mount", "--propagation=private",
		"sh", "-ec", bareNode, "sh"}, flags...)...)
}

// bareAgent is the command line of an agent that pins to the default place.
func bareAgent(t *testing.T, h *lab.Host) []string {
	t.Helper()
	s := h.NewStandalone(web, webSlice)
	return []string{lab.AgentBinary(t), "--manifests", s.Manifests, "--state-dir", t.TempDir(), "--cgroup-root", h.Cgroup,
		"--hostname-override", lab.NodeName, "--service-cluster-ip-range", "10.96.0.0/16"}
}

// TestBareNode: an agent brings the BPF file system that its node lacks, and says so.
// The next one takes over what is pinned there.
func TestBareNode(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	h.ServeBackends()
	agent := bareAgent(t, h)
	p := startBare(t, h, "", agent...)
	lab.Eventually(t, "the Service is served", func() bool { return p.Ended() || reachable(h, webTCP)() })
	if !contains(p.Output(), "Mounted a BPF file system", datapath.DefaultBPFFS) {
		t.Errorf("the log does not tell of the mount:\n%s", p.Output())
	}
	pins := filepath.Join("/proc", fmt.Sprint(p.PID()), "root", datapath.Dir(datapath.DefaultBPFFS))
	if _, err := os.Stat(filepath.Join(pins, "bl_frontend")); err != nil {
		t.Errorf("pins of the agent: %v", err)
	}

	// The mount namespace is the node: it outlives the agent.
	node := h.Start("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", p.PID()), "sleep", "infinity")
	lab.Eventually(t, "the node is held", func() bool {
		mine, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", node.PID()))
		theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.PID()))
		return err == nil && err2 == nil && mine == theirs
	})
	p.Signal(unix.SIGTERM)
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	mustReach(t, h, "tcp4", webTCP)
	on := []string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", node.PID())}
	next := h.Start("nsenter", append(on, agent...)...)
	lab.Eventually(t, "the next agent serves", func() bool { return next.Ended() || contains(next.Output(), "Serving") })
	if contains(next.Output(), "Mounted") {
		t.Errorf("the next agent mounts again:\n%s", next.Output())
	}
	mustReach(t, h, "tcp4", webTCP)
	next.Signal(unix.SIGTERM)
	if err := next.Wait(); err != nil {
		t.Fatal(err)
	}
	cleanup := h.Start("nsenter", append(on, agent[0], "--cleanup")...)
	if err := cleanup.Wait(); err != nil || !contains(cleanup.Output(), "removed", "bl_frontend") {
		t.Errorf("--cleanup: %v\n%s", err, cleanup.Output())
	}
}

// TestBareNodeRefused: where the agent may not mount, or what it mounts would end with a
// pod, it says what to type.
func TestBareNodeRefused(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	agent := bareAgent(t, h)
	const how = "mount -t bpf bpf " + datapath.DefaultBPFFS
	wantRefusal(t, startBare(t, h, "mount -t tmpfs tmpfs /sys/fs/bpf", agent...), how, "--init-only")
	wantRefusal(t, startBare(t, h, "mount -t bpf -o ro bpf /sys/fs/bpf", agent...), "mount -o remount,rw "+datapath.DefaultBPFFS, "readOnly", "--bpffs")
	limited := append([]string{"setpriv", "--inh-caps=-all", "--bounding-set=-all,+bpf,+perfmon,+net_admin"}, agent...)
	wantRefusal(t, startBare(t, h, "", limited...), how, "not permitted")
}

// TestInitOnly: the agent's --init-only mounts a BPF file system over what the container
// has at its place, once.
func TestInitOnly(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	p := startBare(t, h, "mount -t tmpfs tmpfs /sys/fs/bpf", "sh", "-ec", `"$0" --init-only; "$0" --init-only; stat -f -c %T /sys/fs/bpf`, lab.AgentBinary(t))
	if err := p.Wait(); err != nil || !contains(p.Output(), "mounted a BPF file system at "+datapath.DefaultBPFFS+"\n",
		"a BPF file system is mounted at "+datapath.DefaultBPFFS+"\n", "bpf_fs\n") {
		t.Errorf("--init-only: %v\n%s", err, p.Output())
	}
}

// TestInitOnlyForTheNode: where mounts pass from containers to the node, as with the mount
// propagation Bidirectional, the mount is the node's and stays when the container has ended.
func TestInitOnlyForTheNode(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	const container = `unshare --mount --propagation=unchanged sh -ec 'mount --bind /sys/fs/bpf "$1"; exec "$0" --init-only --bpffs "$1"' "$0" "$1"`
	p := startBare(t, h, "mount --make-rshared /", "sh", "-ec",
		container+"\nstat -f -c 'the node has %T' /sys/fs/bpf", lab.AgentBinary(t), t.TempDir())
	if err := p.Wait(); err != nil || !contains(p.Output(), "mounted a BPF file system", "the node has bpf_fs\n") {
		t.Errorf("%v\n%s", err, p.Output())
	}
}

// TestCleanupOfBareNode: where no BPF file system is mounted there is nothing to remove, nor
// a cgroup2 hierarchy that an agent has mounted.
func TestCleanupOfBareNode(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	const unmount = "if mountpoint -q /run/beeline/cgroupv2; then umount /run/beeline/cgroupv2; fi"
	for _, flag := range []string{"--cleanup", "--drain"} {
		p := startBare(t, h, unmount, lab.AgentBinary(t), flag)
		if err := p.Wait(); err != nil || !contains(p.Output(), "nothing to remove in "+datapath.DefaultBPFFS) {
			t.Errorf("%s: %v\n%s", flag, err, p.Output())
		}
	}
}
