package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/kubeclient"
)

const (
	nodePortRounds = 100
	nodePortBatch  = 100 // connections
	// proxyTimeout is how long a proxy may take to serve.
	proxyTimeout = 3 * time.Minute
)

// backend is what is behind one of the Services that are connected to.
type backend struct {
	name     string
	title    string
	addr     netip.Prefix
	nodePort uint16
	protocol corev1.Protocol
}

var (
	near     = backend{"near", "a pod of the node", podAddr, 32001, corev1.ProtocolTCP}
	far      = backend{"far", "another machine", lanFar, 32002, corev1.ProtocolTCP}
	backends = []backend{near, far}
)

// server returns who accepts connections to a NodePort of node i.
func (l *lan) server(b backend, i int) *acceptor {
	if b == far {
		return l.far
	}
	return l.pods[i]
}

// nodeProxies are what serves a node each. The names of those of kube-proxy are its
// modes.
var nodeProxies = []string{beeline, "iptables", "nftables"}

// measureNodePort measures TCP connections of a client to a NodePort of nodes that
// are alike but for who serves them.
func measureNodePort(ctx context.Context, box *sandbox) (runs []samples, err error) {
	l := load{services: 5000, endpoints: 2, protocol: model.TCP, published: true}
	network, err := newLAN(len(forwarders))
	if err != nil {
		return nil, err
	}
	server, stop, err := startCluster(ctx, box.dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	c, err := client(server.Config)
	if err != nil {
		return nil, err
	}
	if err := l.fill(ctx, c); err != nil {
		return nil, fmt.Errorf("fill the API server: %w", err)
	}
	if err := createNodePorts(ctx, c); err != nil {
		return nil, fmt.Errorf("create the NodePorts: %w", err)
	}
	for i, name := range forwarders {
		if name == plain {
			continue
		}
		p := nodeProxy{name: name, index: i, host: network.nodes[i], box: box}
		stop, err := p.start(ctx, server, c, l.services)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	s := make(samples)
	if err := network.client.do(func() error { return network.measure(ctx, s) }); err != nil {
		return nil, err
	}
	err = network.measureForwarding(ctx, s)
	return []samples{s}, err
}

// createNodePorts creates the Services that are connected to.
func createNodePorts(ctx context.Context, c *kubeclient.Client) error {
	for _, b := range append(slices.Clone(backends), datagrams) {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: b.name},
			Spec: corev1.ServiceSpec{
				Type:  corev1.ServiceTypeNodePort,
				Ports: []corev1.ServicePort{{Port: servicePort, NodePort: int32(b.nodePort), Protocol: b.protocol}},
			},
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: b.name, Labels: map[string]string{discoveryv1.LabelServiceName: b.name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{b.addr.Addr().String()}}},
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(endpointPort)), Protocol: &b.protocol}},
		}
		if _, err := c.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := c.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// nodeProxy is a node and what serves it.
type nodeProxy struct {
	name  string
	index int
	host  *host
	box   *sandbox
}

// start starts what serves the node, and returns once the agent has synced or
// kube-proxy runs.
func (p *nodeProxy) start(ctx context.Context, server *apiserver.Server, c *kubeclient.Client, services int) (stop func() error, err error) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: p.name},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: lanNode(p.index).Addr().String()},
		}},
	}
	if _, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	dir := filepath.Join(p.box.dir, p.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	err = p.host.do(func() error {
		// The API server is in another namespace.
		_, kubeconfig, err := proxyTo(server, dir)
		if err != nil {
			return err
		}
		switch p.name {
		case beeline:
			stop, err = p.startAgent(ctx, dir, kubeconfig, services)
			return err
		case beelineXDP:
			stop, err = p.startAgent(ctx, dir, kubeconfig, services, "--xdp=native")
			return err
		}
		programs, err := apiserver.Build(ctx)
		if err != nil {
			return err
		}
		stop, err = startKubeProxy(filepath.Join(programs, "kube-proxy"), dir, p.name, p.name, kubeconfig)
		return errors.Join(err, forgetConnections())
	})
	return stop, err
}

// startAgent starts an agent with a folder and pins of its own.
func (p *nodeProxy) startAgent(ctx context.Context, dir, kubeconfig string, services int, flags ...string) (stop func() error, err error) {
	cgroup, err := p.box.subgroup(p.name)
	if err != nil {
		return nil, err
	}
	own := &sandbox{cgroup: cgroup, dir: dir, bpffs: filepath.Join(p.box.bpffs, p.name)}
	if err := os.Mkdir(own.bpffs, 0o700); err != nil {
		return nil, err
	}
	a, err := startAgent(own, filepath.Join(os.Getenv(buildEnv), agentName), kubeconfig, cgroup,
		append(flags, "--hostname-override="+p.name, "--devices=uplink")...)
	if err != nil {
		return nil, err
	}
	stop = func() error { return p.host.do(a.stop) }
	if _, err := a.synced(ctx, services); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// key returns the key of a figure of what serves a node.
func (b backend) key(figure, name string) string {
	return fmt.Sprintf("nodeport/%s/%s/%s", b.name, figure, name)
}

// measure measures from the client's namespace.
func (l *lan) measure(ctx context.Context, s samples) error {
	if err := quiet(); err != nil {
		return err
	}
	var list []contestant
	for _, b := range backends {
		for i, name := range nodeProxies {
			to, server := newSockaddr(lanNode(i).Addr(), b.nodePort), l.server(b, i)
			if err := awaitConnection(ctx, &to, server); err != nil {
				return fmt.Errorf("%s, %s: %w", name, b.name, err)
			}
			list = append(list, contestant{b.name + name, func() (float64, error) {
				return connectAll(&to, server, func(took time.Duration) {
					s.add(b.key("latency", name), float64(took)/float64(time.Microsecond))
				})
			}})
		}
	}
	return interleave(ctx, nodePortRounds, list, func(m measured) {
		for _, b := range backends {
			best := 0.0
			for _, name := range nodeProxies {
				rate := m[b.name+name]
				s.add(b.key("rate", name), rate)
				if name != beeline {
					best = max(best, rate)
				}
			}
			s.add(b.key("rate", "against"), m[b.name+beeline]/best)
		}
	})
}

// awaitConnection waits until a connection to the server can be made.
func awaitConnection(ctx context.Context, to *sockaddr, server *acceptor) error {
	for start := time.Now(); ; {
		_, err := connectOnce(to)
		if err == nil {
			return server.await(1)
		}
		if time.Since(start) > proxyTimeout {
			return fmt.Errorf("no connection after %s: %w", proxyTimeout, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// connectAll makes and closes a batch of connections to the server.
func connectAll(to *sockaddr, server *acceptor, each func(time.Duration)) (perSecond float64, err error) {
	start := time.Now()
	for range nodePortBatch {
		took, err := connectOnce(to)
		if err != nil {
			return 0, err
		}
		each(took)
	}
	took := time.Since(start)
	return nodePortBatch / took.Seconds(), server.await(nodePortBatch)
}

// connectOnce makes and closes a connection and returns how long it took to make.
func connectOnce(to *sockaddr) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make a socket: %w", err)
	}
	defer unix.Close(fd)
	start := time.Now()
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), to.len)
	if errno != 0 {
		return 0, fmt.Errorf("connect: %w", errno)
	}
	return time.Since(start), nil
}
