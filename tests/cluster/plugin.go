package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// operator is the user that may do no more than the plugin needs, see plugin.yaml.
const operator = "operator"

// pluginCheck is a call of kubectl's plugin.
type pluginCheck struct {
	args string
	code int
	out  []string // what it prints, among other things
	errs []string // what it says on standard error, likewise
}

// plugin asks the nodes by kubectl's plugin: all of them, then without one whose agent's pod does
// not run and one whose kubelet does not answer, which it names.
func plugin(ctx context.Context, c *cluster) error {
	if c.Nodes < 3 {
		return errors.New("the plugin is tried with three nodes at least, see --nodes")
	}
	for _, name := range []string{"echo.yaml", "plugin.yaml"} {
		if err := c.apply(ctx, name); err != nil {
			return err
		}
	}
	if err := c.rolledOutIn(ctx, "default", "daemonset/echo"); err != nil {
		return err
	}
	pod, service, err := c.echo(ctx)
	if err != nil {
		return err
	}
	if err := c.checkPlugin(ctx, wholeCluster(pod, service)...); err != nil {
		return err
	}
	if err := c.checkMonitor(ctx, service); err != nil {
		return err
	}
	if err := c.stopAgent(ctx, c.nodes[2]); err != nil {
		return err
	}
	resume, err := suspendKubelet(c.nodes[1])
	if err != nil {
		return err
	}
	return errors.Join(c.checkPlugin(ctx, brokenCluster...), resume())
}

// echo returns a pod of the second node and the address of the Service that it is of.
func (c *cluster) echo(ctx context.Context) (pod, service string, err error) {
	inside, outside, err := c.serviceAddresses(ctx, "echo")
	if err != nil {
		return "", "", err
	}
	if err := c.answers(ctx, outside[0]); err != nil {
		return "", "", err
	}
	pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{
		LabelSelector: "app=echo", FieldSelector: "spec.nodeName=" + nodeName(2),
	})
	if err != nil || len(pods.Items) == 0 {
		return "", "", errors.Join(errors.New("no pod echo on the second node"), err)
	}
	address, _ := strings.CutPrefix(inside[0], "http://")
	return pods.Items[0].Name, strings.TrimSuffix(address, ":80"), nil
}

// wholeCluster are the calls while all nodes answer.
func wholeCluster(pod, service string) []pluginCheck {
	all := []string{nodeName(1), nodeName(2), nodeName(3)}
	return []pluginCheck{
		{args: "status", out: append(all, "running", "NODE")},
		{args: "status --node=node-2 -o json", out: []string{`"node-2": {`, `"running": true`}},
		{args: "top default/echo --interval=500ms", out: []string{"Port 80/TCP IPv4", "Port 80/TCP IPv6"}},
		{args: "top --by=node --interval=500ms", out: append(all, "CONNECTIONS/S")},
		{args: "verify", out: []string{"3 nodes checked: Nothing found."}},
		{args: "explain default/" + pod + " echo", out: []string{"on node node-2", "a process of a pod of this node", "ClusterIP " + service + ":80 of default/echo", "served"}},
		{args: "explain " + pod + " " + service + ":81", code: 5, out: []string{"refused (undeclared_port)"}},
		{args: "explain " + pod + " nothing", code: 1, errs: []string{"node-2: ", "default/nothing is not served"}},
		{args: "status --node=node-9", code: 4, errs: []string{"node-9: no agent's pod is there"}},
	}
}

// brokenCluster are the calls while the agent's pod of the third node does not run, and the kubelet
// of the second does not answer.
var brokenCluster = []pluginCheck{
	{
		args: "status --timeout=5s", code: 4, out: []string{nodeName(1) + " "},
		errs: []string{"node-2: pod beeline-", "no answer within 5s", "node-3: pod beeline-", "does not run: Pending: ErrImageNeverPull", "exit code 4 of node-2,node-3"},
	},
	{args: "verify --node=node-1", out: []string{"1 node checked"}},
}

// checkPlugin calls the plugin as an administrator, who comes by WebSocket, and as the operator, who
// may not and comes by SPDY.
func (c *cluster) checkPlugin(ctx context.Context, checks ...pluginCheck) error {
	for _, check := range checks {
		for _, user := range []string{"admin", operator} {
			out, said, code, err := c.callPlugin(ctx, user, strings.Fields(check.args)...)
			if code != check.code {
				err = errors.Join(err, fmt.Errorf("exit code %d, want %d", code, check.code))
			}
			if err = errors.Join(err, lacks(out, check.out), lacks(said, check.errs)); err != nil {
				return fmt.Errorf("kubectl beeline %s, by %s: %w\n%s%s", check.args, user, err, out, said)
			}
		}
		c.say("kubectl beeline %s", check.args)
	}
	return nil
}

// lacks returns an error that names what a text lacks.
func lacks(text string, wanted []string) (err error) {
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			err = errors.Join(err, fmt.Errorf("no %q in what it says", want))
		}
	}
	return err
}

// pluginCommand has kubectl run the plugin, which it finds as the documents say.
func (c *cluster) pluginCommand(ctx context.Context, user string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Programs.Node, "kubectl"), append([]string{"beeline"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.credential(user+".conf"), "HOME="+c.Dir, "PATH="+c.Plugin)
	return cmd
}

// callPlugin runs the plugin until it ends.
func (c *cluster) callPlugin(ctx context.Context, user string, args ...string) (out, said string, code int, err error) {
	var stdout, stderr bytes.Buffer
	cmd := c.pluginCommand(ctx, user, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode(), err
}

// stopAgent has a node's agent end, and its pod not come up again: the image is gone.
func (c *cluster) stopAgent(ctx context.Context, n *node) error {
	ctr := exec.CommandContext(ctx, "nsenter", "--all", "--target", strconv.Itoa(n.pid()),
		filepath.Join(c.Programs.Containerd, "ctr"), "--namespace=k8s.io", "images", "remove", c.Image)
	if out, err := ctr.CombinedOutput(); err != nil {
		return fmt.Errorf("remove the agent's image from %s: %w\n%s", nodeName(n.index), err, out)
	}
	of := metav1.ListOptions{LabelSelector: podSelectors[proxyBeeline], FieldSelector: "spec.nodeName=" + nodeName(n.index)}
	pods := c.client.CoreV1().Pods("kube-system")
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, of); err != nil {
		return err
	}
	return c.await(ctx, "the agent's pod on "+nodeName(n.index)+" waits for its image", func() error {
		list, err := pods.List(ctx, of)
		if err == nil && (len(list.Items) != 1 || !waitsForImage(&list.Items[0])) {
			err = fmt.Errorf("there are %d pods", len(list.Items))
		}
		return err
	})
}

func waitsForImage(pod *corev1.Pod) bool {
	for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if s.State.Waiting != nil && s.State.Waiting.Reason == "ErrImageNeverPull" {
			return true
		}
	}
	return false
}

// suspendKubelet stops the kubelet of a node, so that it takes connections and does not answer.
func suspendKubelet(n *node) (resume func() error, err error) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.pid()))
	if err != nil {
		return nil, err
	}
	for _, list := range lists {
		children, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		for child := range strings.FieldsSeq(string(children)) {
			name, err := os.ReadFile(filepath.Join("/proc", child, "comm"))
			if err != nil || strings.TrimSpace(string(name)) != "kubelet" {
				continue // one that has just ended has no name
			}
			pid, err := strconv.Atoi(child)
			if err != nil {
				return nil, err
			}
			return func() error { return unix.Kill(pid, unix.SIGCONT) }, unix.Kill(pid, unix.SIGSTOP)
		}
	}
	return nil, fmt.Errorf("no kubelet runs on %s", nodeName(n.index))
}

// buildPlugin returns a folder with the command and the link by which kubectl finds its plugin.
func buildPlugin(ctx context.Context, cache string) (string, error) {
	dir := filepath.Join(cache, "plugin")
	if err := buildStatic(ctx, filepath.Join(dir, "beeline"), "./cmd/beeline"); err != nil {
		return "", err
	}
	link := filepath.Join(dir, "kubectl-beeline")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return dir, os.Symlink("beeline", link)
}
