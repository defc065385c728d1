package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/isolated"
)

// pod is a network namespace on the node's bridge.
type pod struct {
	name string
	addr string
}

// The web servers' addresses are those of the endpoints in examples/.
var (
	webServers = []pod{{"web-1", "10.77.0.11"}, {"web-2", "10.77.0.12"}, {"web-3", "10.77.0.13"}}
	clients    = []pod{{"client-1", "10.77.0.21"}, {"client-2", "10.77.0.22"}, {"client-3", "10.77.0.23"}}
)

const (
	// node is the name of the namespace that stands for the host.
	node     = "node"
	nodeAddr = "10.77.0.1"
)

// stage is what the demo makes on the machine. Everything follows from its name,
// so that whoever knows the name can remove it.
type stage struct {
	name string
	bin  string // folder of the binaries
	// processes is the open folder of the cgroup that every process is in.
	processes *os.File
}

func newStage(bin string) *stage {
	return &stage{name: fmt.Sprintf("beeline-demo-%d", os.Getpid()), bin: bin}
}

func (s *stage) dir() string                 { return filepath.Join(os.TempDir(), s.name) }
func (s *stage) manifests() string           { return filepath.Join(s.dir(), "manifests") }
func (s *stage) bpffs() string               { return filepath.Join(datapath.DefaultBPFFS, s.name) }
func (s *stage) namespace(pod string) string { return s.name + "-" + pod }

func (s *stage) cgroup() (string, error) {
	root, err := datapath.FindCgroup2()
	return filepath.Join(root, s.name), err
}

// namespaces are the names of those that may be there.
func (s *stage) namespaces() []string {
	list := []string{s.namespace(node)}
	for _, p := range append(webServers, clients...) {
		list = append(list, s.namespace(p.name))
	}
	return list
}

// build makes the folders, the cgroup and the network.
func (s *stage) build(ctx context.Context) error {
	cgroup, err := s.cgroup()
	if err != nil {
		return err
	}
	for _, dir := range []string{s.dir(), s.manifests(), s.bpffs(), cgroup} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if s.processes, err = os.Open(cgroup); err != nil {
		return err
	}
	if err := copyManifests("examples", s.manifests()); err != nil {
		return err
	}
	if err := s.buildNode(ctx); err != nil {
		return err
	}
	for _, p := range append(webServers, clients...) {
		if err := s.buildPod(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) buildNode(ctx context.Context) error {
	return s.ip(ctx, node,
		"link set lo up",
		"link add br0 type bridge",
		"addr add "+nodeAddr+"/24 dev br0",
		"link set br0 up")
}

// buildPod connects a pod to the bridge by a veth pair, as a CNI plugin does.
func (s *stage) buildPod(ctx context.Context, p pod) error {
	err := s.ip(ctx, p.name,
		"link set lo up",
		fmt.Sprintf("link add eth0 type veth peer name %s netns %s", p.name, s.namespace(node)),
		"addr add "+p.addr+"/24 dev eth0",
		"link set eth0 up")
	if err != nil {
		return err
	}
	return s.batch(ctx, node, "link set "+p.name+" master br0 up")
}

// ip makes a namespace and runs lines of ip(8) in it.
func (s *stage) ip(ctx context.Context, pod string, lines ...string) error {
	if err := run(s.command(ctx, "ip", "netns", "add", s.namespace(pod))); err != nil {
		return err
	}
	return s.batch(ctx, pod, lines...)
}

func (s *stage) batch(ctx context.Context, pod string, lines ...string) error {
	cmd := s.command(ctx, "ip", "-n", s.namespace(pod), "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	return run(cmd)
}

// command returns a command in the demo's cgroup. It has a process group of its
// own, so that Ctrl-C reaches the demo alone.
func (s *stage) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = isolated.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:     true,
		UseCgroupFD: true,
		CgroupFD:    int(s.processes.Fd()),
	}
	return cmd
}

// in returns a command in the cgroup and in a pod, or on the node. nsenter, unlike
// ip netns exec, leaves the mounts as they are, and with them cgroup2 and bpffs.
func (s *stage) in(ctx context.Context, pod, name string, args ...string) *exec.Cmd {
	enter := []string{"--net=/run/netns/" + s.namespace(pod), "--", name}
	return s.command(ctx, "nsenter", append(enter, args...)...)
}

// self is in with this program as the command, in another role.
func (s *stage) self(ctx context.Context, pod, role, arg string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return s.in(ctx, pod, exe, role, arg), nil
}

// run runs a command and fails with what it printed.
func run(cmd *exec.Cmd) error {
	_, err := output(cmd)
	return err
}

// output runs a command and returns what it printed, on error too.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), err
}
