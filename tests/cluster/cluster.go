package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/kubeclient"
)

// proxyLabel is the label of the nodes on which a proxy is to run; its value is
// "wanted".
func proxyLabel(proxy string) string { return "beeline.io/" + proxy }

// cluster is a running cluster. The process that holds it is in the namespace of
// the router between the nodes, where the control plane runs too.
type cluster struct {
	settings
	logs    string
	client  *kubeclient.Client
	daemons []*daemon
	nodes   []*node
	started time.Time
}

// runCluster boots a cluster, does the task and ends the cluster.
func runCluster(ctx context.Context, s settings) (err error) {
	c := &cluster{settings: s, started: time.Now()}
	c.logs = filepath.Join(s.Reports, "logs", filepath.Base(s.Dir))
	if err := os.MkdirAll(c.logs, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		err = errors.Join(err, c.stop())
	}()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := c.boot(ctx); err != nil {
		return fmt.Errorf("boot the cluster: %w", err)
	}
	task := tasks[s.Task]
	if !task.balancer {
		if err := c.startBalancer(ctx); err != nil {
			return fmt.Errorf("start the load balancer: %w", err)
		}
	}
	return task.run(ctx, c)
}

// boot starts all parts and returns when all nodes are ready, names are resolved
// and the proxy serves.
func (c *cluster) boot(ctx context.Context) error {
	if err := makeFabric(c.settings); err != nil {
		return err
	}
	socket, err := net.FileListener(os.NewFile(listenerFD, "listener"))
	if err != nil {
		return err
	}
	local := "https://" + socket.Addr().String()
	if err := os.MkdirAll(filepath.Join(c.Dir, "credentials"), 0o700); err != nil {
		return err
	}
	if err := issueCredentials(filepath.Join(c.Dir, "credentials"), c.Nodes, local); err != nil {
		return err
	}
	go forward(socket)
	for i := 1; i <= c.Nodes; i++ {
		n, err := c.makeNode(i)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
	}
	if err := c.startControlPlane(ctx); err != nil {
		return err
	}
	c.say("the API server is ready")
	config, err := c.restConfig()
	if err != nil {
		return err
	}
	if c.client, err = kubeclient.New(config); err != nil {
		return err
	}
	return c.bootNodes(ctx)
}

// bootNodes starts the kubelets and what runs in pods.
func (c *cluster) bootNodes(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := c.register(ctx, n.index); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := n.startKubelet(ctx); err != nil {
			return err
		}
	}
	// An add-on reaches the API server by its Service, and makes the nodes ready.
	if err := c.installProxies(ctx); err != nil {
		return err
	}
	if err := c.installAddons(ctx); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := c.await(ctx, nodeName(n.index)+" is ready", func() error { return c.nodeReady(ctx, n.index) }); err != nil {
			return err
		}
	}
	c.say("%d nodes are ready", c.Nodes)
	if err := c.apply(ctx, "coredns.yaml"); err != nil {
		return err
	}
	if err := c.rolledOut(ctx, "deployment/coredns"); err != nil {
		return err
	}
	c.say("names are resolved")
	return nil
}

// installProxies installs what serves the Services of the nodes.
func (c *cluster) installProxies(ctx context.Context) error {
	switch c.Proxy {
	case proxyNone:
		return nil
	case proxyBeeline:
		if err := c.installChart(ctx, nil); err != nil {
			return err
		}
	default:
		if err := c.apply(ctx, "kube-proxy.yaml"); err != nil {
			return err
		}
		if err := c.rolledOut(ctx, "daemonset/kube-proxy"); err != nil {
			return err
		}
	}
	c.say("%s serves", c.Proxy)
	return nil
}

// apply applies one of our manifests.
func (c *cluster) apply(ctx context.Context, name string) error {
	return c.applyWith(ctx, name, map[string]any{
		"CoreDNSImage": coreDNSImage, "KubeProxyImage": kubeProxyImage,
		"APIHost": routerAddr4, "APIURL": apiURL,
		"DNSAddr4": dnsAddr4, "DNSAddr6": dnsAddr6,
		"ClusterCIDRs": clusterCIDRs, "Mode": c.Mode, "ProxyLabel": proxyLabel(proxyKubeProxy), "LoadImage": loadImage,
	})
}

// applyWith applies one of our manifests, filled in with data.
func (c *cluster) applyWith(ctx context.Context, name string, data map[string]any) error {
	manifest, err := render(name, data)
	if err != nil {
		return err
	}
	path := filepath.Join(c.Dir, name)
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		return err
	}
	_, err = c.kubectl(ctx, "apply", "--server-side", "--filename="+path)
	return err
}

// rolledOut waits until an object of kube-system has all its pods ready.
func (c *cluster) rolledOut(ctx context.Context, object string) error {
	return c.rolledOutIn(ctx, "kube-system", object)
}

func (c *cluster) rolledOutIn(ctx context.Context, namespace, object string) error {
	_, err := c.kubectl(ctx, "rollout", "status", "--namespace="+namespace, "--timeout="+bootTimeout.String(), object)
	if err != nil {
		pods, _ := c.kubectl(ctx, "describe", "pods", "--namespace="+namespace)
		err = fmt.Errorf("%w\n%s", err, pods)
	}
	return err
}

func (c *cluster) credential(name string) string { return filepath.Join(c.Dir, "credentials", name) }

// start starts a program of the control plane.
func (c *cluster) start(name, binary string, args ...string) error {
	d, err := startDaemon(c.logs, name, exec.Command(binary, args...))
	if err == nil {
		c.daemons = append(c.daemons, d)
	}
	return err
}

// end kills a part of the cluster, which no longer has to run.
func (c *cluster) end(name string) {
	c.daemons = slices.DeleteFunc(c.daemons, func(d *daemon) bool {
		if d.name == name {
			d.kill()
		}
		return d.name == name
	})
}

// await tries until something is so, a part of the cluster has ended, or time is
// up.
func (c *cluster) await(ctx context.Context, what string, try func() error) error {
	deadline := time.Now().Add(bootTimeout)
	for {
		err := try()
		if err == nil {
			return nil
		}
		for _, d := range c.daemons {
			if ended := d.failed(); ended != nil {
				return ended
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not after %s: %w", what, bootTimeout, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// say tells the user how far things are.
func (c *cluster) say(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(c.started).Seconds(), fmt.Sprintf(format, args...))
}

// stop ends all that was started, the nodes first, and keeps their logs.
func (c *cluster) stop() error {
	var errs []error
	for _, n := range c.nodes {
		n.daemon.kill()
		errs = append(errs, keepLogs(filepath.Join(c.logs, nodeName(n.index))))
	}
	for _, d := range slices.Backward(c.daemons) {
		d.kill()
	}
	return errors.Join(errs...)
}

// keepLogs puts a copy in place of a link to a node's logs, for its folder goes.
func keepLogs(link string) error {
	target, err := os.Readlink(link)
	if err != nil {
		return err
	}
	return errors.Join(os.Remove(link), run("cp", "--archive", target, link))
}

// forward connects what arrives at the socket, which is in the machine's own
// network namespace, with the API server.
func forward(socket net.Listener) {
	for {
		in, err := socket.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", apiURL[len("https://"):])
			if err != nil {
				return
			}
			defer out.Close()
			go func() {
				_, _ = io.Copy(out, in) // ends with either side
				out.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(in, out)
		}()
	}
}
