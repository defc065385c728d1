package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// node is a node of the cluster: the namespaces of its first process.
type node struct {
	index  int
	daemon *daemon
	stdin  io.WriteCloser
	steps  chan string // what it reports; closed with its end
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// zones are those of the nodes, by turns.
var zones = []string{"zone-a", "zone-b", "zone-c"}

// makeNode makes the i-th node's disk and starts the node: all but its kubelet.
func (c *cluster) makeNode(i int) (*node, error) {
	dir := c.nodeDir(i)
	for _, name := range []string{"lib", "log", "root", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Symlink(filepath.Join(dir, "log"), filepath.Join(c.logs, nodeName(i))); err != nil {
		return nil, err
	}
	return c.startNode(i, c.Images)
}

func (c *cluster) nodeDir(i int) string { return filepath.Join(c.Dir, nodeName(i)) }

func (c *cluster) nodeGroups(i int) groups {
	return groups{hierarchies: c.Hierarchies, name: filepath.Join(c.Groups, nodeName(i))}
}

// startNode starts the i-th node with what is on its disk, which gets the images.
func (c *cluster) startNode(i int, images []string) (*node, error) {
	g := c.nodeGroups(i)
	if err := g.make(); err != nil {
		return nil, err
	}
	files, err := c.nodeFiles(i)
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(nodeSpec{
		Name: nodeName(i), Dir: c.nodeDir(i), Rootfs: c.Rootfs, Shared: c.shared(),
		Groups: g.name, Hierarchies: c.Hierarchies, Programs: c.Programs, Images: images,
		Files: files, KubeletArgs: kubeletArgs(i),
	})
	if err != nil {
		return nil, err
	}
	n := &node{index: i, steps: make(chan string, 8)}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{initEnv + "=" + string(spec), "HOME=/root"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if n.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	cmd.Stdout = write
	if n.daemon, err = startDaemon(c.logs, nodeName(i), cmd); err != nil {
		read.Close()
		return nil, err
	}
	go n.listen(read)
	c.daemons = append(c.daemons, n.daemon)
	return n, connectNode(i, n.pid(), c.settings)
}

// shared returns the folders of programs and images.
func (c *cluster) shared() []string {
	dirs := []string{c.Programs.Kubernetes, c.Programs.Node, c.Programs.Tests, c.Programs.Containerd, c.Programs.Runc, c.Programs.CNI}
	for _, archive := range c.Images {
		if dir := filepath.Dir(archive); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// pid returns the node's first process, whose namespaces are the node's.
func (n *node) pid() int { return n.daemon.cmd.Process.Pid }

func (n *node) listen(r io.ReadCloser) {
	defer r.Close()
	defer close(n.steps)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		n.steps <- lines.Text()
	}
}

// reached waits for the node to report a step.
func (n *node) reached(ctx context.Context, step string) error {
	for {
		select {
		case got, ok := <-n.steps:
			if !ok {
				<-n.daemon.ended
				return fmt.Errorf("before it reported %q: %w", step, n.daemon.failed())
			}
			if got == step {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// startKubelet starts the kubelet once the node has its images.
func (n *node) startKubelet(ctx context.Context) error {
	if err := n.reached(ctx, "images"); err != nil {
		return err
	}
	if _, err := io.WriteString(n.stdin, "go\n"); err != nil {
		return err
	}
	return n.reached(ctx, "kubelet")
}

// register makes the Node object, which the kubelet finds and keeps up to date.
func (c *cluster) register(ctx context.Context, i int) error {
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname:       nodeName(i),
			corev1.LabelTopologyZone:   zones[(i-1)%len(zones)],
			corev1.LabelTopologyRegion: "region-1",
			corev1.LabelOSStable:       "linux",
			proxyLabel(c.Proxy):        "wanted",
		}},
	}
	for _, pods := range podRanges(i) {
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, pods.String())
	}
	object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	_, err := c.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	return err
}

// ready reports whether the kubelet says that the node is.
func (c *cluster) nodeReady(ctx context.Context, i int) error {
	object, err := c.client.CoreV1().Nodes().Get(ctx, nodeName(i), metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == corev1.ConditionTrue {
				return nil
			}
			return errors.New(condition.Message)
		}
	}
	return errors.New("the kubelet has not yet said whether it is ready")
}

// addresses returns the node's own, for flags.
func addresses(i int) string {
	var all []string
	for _, p := range nodeAddrs(i) {
		all = append(all, p.Addr().String())
	}
	return strings.Join(all, ",")
}
