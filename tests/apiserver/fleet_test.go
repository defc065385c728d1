package apiserver

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/kube"
	"github.com/beeline-lb/beeline/tests/kubeclient"
)

// fleet is many nodes' clients of one kind, each with a connection of its own.
type fleet struct {
	name string
	// watches is how many a client keeps open.
	watches int64
	run     func(ctx context.Context, t *testing.T, f *fleet, c *rest.Config, node string)

	in, out, requests, lists, open atomic.Int64
	later                          atomic.Int64 // requests that the server put off: 429
	changed                        atomic.Int64 // slices seen with a new address, of all clients

	mu    sync.Mutex
	times []time.Time // of requests
}

// traffic is what a fleet has sent and received.
type traffic struct{ requests, lists, later, in, out int64 }

func (f *fleet) traffic() traffic {
	return traffic{f.requests.Load(), f.lists.Load(), f.later.Load(), f.in.Load(), f.out.Load()}
}

func (a traffic) minus(b traffic) traffic {
	return traffic{a.requests - b.requests, a.lists - b.lists, a.later - b.later, a.in - b.in, a.out - b.out}
}

// peak returns the largest number of requests within one second, from begin on.
func (f *fleet) peak(begin time.Time) (most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	perSecond := make(map[int64]int)
	for _, at := range f.times {
		if at.After(begin) {
			perSecond[int64(at.Sub(begin)/time.Second)]++
		}
	}
	for _, n := range perSecond {
		most = max(most, n)
	}
	return most
}

// config returns base with kube-proxy's default rate limit and a connection of its own,
// whose bytes and requests are counted.
func (f *fleet) config(base *rest.Config) *rest.Config {
	c := rest.CopyConfig(base)
	c.QPS, c.Burst = 5, 10
	c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &countedConn{conn, f}, err
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) { return f.roundTrip(next, r) })
	})
	return c
}

func (f *fleet) roundTrip(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	f.requests.Add(1)
	f.mu.Lock()
	f.times = append(f.times, time.Now())
	f.mu.Unlock()
	query := r.URL.Query()
	watch := query.Get("watch") != ""
	if !watch || query.Get("sendInitialEvents") == "true" {
		f.lists.Add(1)
	}
	resp, err := next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		f.later.Add(1)
	}
	if err == nil && watch && resp.StatusCode == http.StatusOK {
		f.open.Add(1)
		resp.Body = &watchBody{ReadCloser: resp.Body, closed: sync.OnceFunc(func() { f.open.Add(-1) })}
	}
	return resp, err
}

// countedConn counts the bytes of a connection, with TLS.
type countedConn struct {
	net.Conn
	f *fleet
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.f.in.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.f.out.Add(int64(n))
	return n, err
}

type watchBody struct {
	io.ReadCloser
	closed func()
}

func (b *watchBody) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}

// newAddr begins the addresses that a rollout brings.
const newAddr = "10.2."

func beelineFleet() *fleet {
	return &fleet{name: "beeline", watches: 4, run: runBeeline}
}

// fleetSink keeps nothing: the source's own stores are as in the agent.
type fleetSink struct{ f *fleet }

func (s fleetSink) Synced() {}

func (s fleetSink) Apply(u source.Update) {
	for _, sl := range u.PutSlices {
		if len(sl.Endpoints) > 0 && strings.HasPrefix(sl.Endpoints[0].Addr.String(), newAddr) {
			s.f.changed.Add(1)
		}
	}
}

func runBeeline(ctx context.Context, t *testing.T, f *fleet, c *rest.Config, node string) {
	src, err := kube.New(kube.Options{Config: c, QPS: c.QPS, Burst: c.Burst, NodeName: node, Sink: fleetSink{f}})
	must(t, err)
	go func() { _ = src.Run(ctx) }() // nil when ctx ends
}

func kubeProxyFleet() *fleet {
	return &fleet{name: "kube-proxy", watches: 4, run: runKubeProxy}
}

// runKubeProxy follows what kube-proxy 1.36 follows (cmd/kube-proxy/app/server.go).
func runKubeProxy(ctx context.Context, t *testing.T, f *fleet, c *rest.Config, node string) {
	c.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubeclient.New(c)
	must(t, err)
	const resync = 15 * time.Minute
	services := kubeclient.Informer(client.CoreV1().RESTClient(), "services", new(corev1.Service), resync, func(l *metav1.ListOptions) {
		l.LabelSelector = "!service.kubernetes.io/service-proxy-name"
		l.FieldSelector = "spec.clusterIP!=" + corev1.ClusterIPNone
	})
	slices := kubeclient.Informer(client.DiscoveryV1().RESTClient(), "endpointslices", new(discoveryv1.EndpointSlice), resync, func(l *metav1.ListOptions) {
		l.LabelSelector = "!" + corev1.IsHeadlessService
	})
	nodes := kubeclient.Informer(client.CoreV1().RESTClient(), "nodes", new(corev1.Node), resync, func(l *metav1.ListOptions) {
		l.FieldSelector = "metadata.name=" + node
	})
	cidrs := kubeclient.Informer(client.NetworkingV1().RESTClient(), "servicecidrs", new(networkingv1.ServiceCIDR), resync, func(*metav1.ListOptions) {})
	see := func(o any) {
		if s := o.(*discoveryv1.EndpointSlice); len(s.Endpoints) > 0 && strings.HasPrefix(s.Endpoints[0].Addresses[0], newAddr) {
			f.changed.Add(1)
		}
	}
	_, err = slices.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, o any) { see(o) },
	})
	must(t, err)
	for _, informer := range []cache.SharedIndexInformer{services, slices, nodes, cidrs} {
		go informer.RunWithContext(ctx)
	}
}
