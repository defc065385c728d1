package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/kubeclient"
)

const (
	namespace = "bench"
	// slicePart is how many endpoints the controller of Kubernetes puts into one
	// slice.
	slicePart = 100
	// writers is how many clients fill the API server at once.
	writers = 16
)

// harness is what package apiserver, made for tests, needs of a test.
type harness struct {
	testing.TB // has a method that cannot be implemented elsewhere
	ctx        context.Context
	dir        string
	failed     bool
	cleanups   []func()
}

// fatal is what ends a harness that has failed.
type fatal struct{ error }

func (h *harness) Helper()                  {}
func (h *harness) Context() context.Context { return h.ctx }
func (h *harness) Failed() bool             { return h.failed }
func (h *harness) Cleanup(f func())         { h.cleanups = append(h.cleanups, f) }
func (h *harness) Logf(f string, a ...any)  { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (h *harness) Fatalf(f string, a ...any) {
	h.failed = true
	panic(fatal{fmt.Errorf(f, a...)})
}
func (h *harness) Fatal(a ...any) { h.Fatalf("%s", fmt.Sprint(a...)) }

func (h *harness) TempDir() string {
	dir, err := os.MkdirTemp(h.dir, "")
	if err != nil {
		h.Fatal(err)
	}
	return dir
}

// startCluster runs an API server until stop is called.
func startCluster(ctx context.Context, dir string) (s *apiserver.Server, stop func(), err error) {
	h := &harness{ctx: ctx, dir: dir}
	stop = func() {
		for _, f := range slices.Backward(h.cleanups) {
			f()
		}
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fatal:
			err = r.error
			stop()
		default:
			panic(r)
		}
	}()
	// A sandbox has no default route to find an address by; nobody uses it.
	return apiserver.Start(h, "--advertise-address=192.0.2.1"), stop, nil
}

// cluster is an API server that holds a load, to which nobody else writes.
type cluster struct {
	load
	server *apiserver.Server
	client *kubeclient.Client
	slices map[int][]*discoveryv1.EndpointSlice // by Service, once known
}

// startCluster runs an API server that holds the load until stop is called.
func (l load) startCluster(ctx context.Context, dir string) (c *cluster, stop func(), err error) {
	server, stop, err := startCluster(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	c = &cluster{load: l, server: server, slices: make(map[int][]*discoveryv1.EndpointSlice)}
	if c.client, err = client(server.Config); err == nil {
		err = l.fill(ctx, c.client)
	}
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("fill the API server: %w", err)
	}
	return c, stop, nil
}

// client returns a client that does not wait.
func client(config *rest.Config) (*kubeclient.Client, error) {
	c := rest.CopyConfig(config)
	c.ContentType = runtime.ContentTypeProtobuf
	return kubeclient.New(c)
}

// fill creates the Services and their slices, of IPv4.
func (l load) fill(ctx context.Context, c *kubeclient.Client) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := c.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for i := range next {
				if err := l.create(ctx, c, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range l.services {
		next <- i
	}
	close(next)
	all.Wait()
	return context.Cause(ctx)
}

func (l load) create(ctx context.Context, c *kubeclient.Client, i int) error {
	if _, err := c.CoreV1().Services(namespace).Create(ctx, l.apiService(i), metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, s := range l.apiSlices(i) {
		if _, err := c.DiscoveryV1().EndpointSlices(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (l load) apiService(i int) *corev1.Service {
	m := l.service(i)
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:        m.Name.Name,
			Labels:      map[string]string{"app.kubernetes.io/name": m.Name.Name},
			Annotations: map[string]string{"example.org/owner": "a team of this cluster"},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: l.clusterIP(i, model.IPv4).String(),
			Ports:     []corev1.ServicePort{{Protocol: corev1.Protocol(l.protocol.String()), Port: servicePort}},
		},
	}
	if l.ring != 0 {
		s.Annotations[convert.AnnotationAlgorithm] = model.Maglev.String()
		s.Annotations[convert.AnnotationRingSize] = fmt.Sprint(l.ring)
	}
	if m.AffinitySeconds > 0 {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	if l.published && m.Ports[0].NodePort != 0 {
		s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(m.Ports[0].NodePort)
	}
	return s
}

// apiSlices returns the slices of a Service as the controller of Kubernetes makes
// them.
func (l load) apiSlices(i int) []*discoveryv1.EndpointSlice {
	service := l.service(i).Name.Name
	var all []discoveryv1.Endpoint
	for e := range l.endpoints {
		pod := fmt.Sprintf("%s-7d4b9c6f8d-%05d", service, e)
		all = append(all, discoveryv1.Endpoint{
			Addresses: []string{l.endpoint(i, e, model.IPv4).String()},
			Conditions: discoveryv1.EndpointConditions{
				Ready: new(true), Serving: new(true), Terminating: new(false),
			},
			NodeName: new(fmt.Sprintf("node-%03d", (i+e)%200)),
			Zone:     new(fmt.Sprintf("zone-%d", e%3)),
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: namespace, Name: pod,
				UID: types.UID(fmt.Sprintf("00000000-0000-0000-%04x-%012x", e, i)),
			},
		})
	}
	var list []*discoveryv1.EndpointSlice
	for part := range slices.Chunk(all, slicePart) {
		list = append(list, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%d", service, len(list)),
				Labels: map[string]string{
					discoveryv1.LabelServiceName: service,
					discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
				},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   part,
			Ports: []discoveryv1.EndpointPort{{
				Name: new(""), Protocol: new(corev1.Protocol(l.protocol.String())), Port: new(int32(endpointPort)),
			}},
		})
	}
	return list
}

// slicesOf returns the slices of Service i.
func (c *cluster) slicesOf(ctx context.Context, i int) ([]*discoveryv1.EndpointSlice, error) {
	if known := c.slices[i]; known != nil {
		return known, nil
	}
	var list []*discoveryv1.EndpointSlice
	for part := range (c.endpoints + slicePart - 1) / slicePart {
		name := fmt.Sprintf("%s-%d", c.service(i).Name.Name, part)
		s, err := c.client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	c.slices[i] = list
	return list, nil
}

// replacement is a slice in which one endpoint has another address.
type replacement struct {
	service, part int
	slice         *discoveryv1.EndpointSlice
}

// prepareReplacement gives an address that no endpoint has had to the endpoint
// with the address old.
func (c *cluster) prepareReplacement(ctx context.Context, i int, old netip.Addr) (replacement, error) {
	list, err := c.slicesOf(ctx, i)
	if err != nil {
		return replacement{}, err
	}
	for part, s := range list {
		for e := range s.Endpoints {
			if s.Endpoints[e].Addresses[0] == old.String() {
				fresh := c.services*c.endpoints + int(replacements.Add(1))
				s = s.DeepCopy()
				s.Endpoints[e].Addresses = []string{nth(endpoints4, fresh).String()}
				return replacement{i, part, s}, nil
			}
		}
	}
	return replacement{}, fmt.Errorf("connect() to %s leads to %s, which is none of its endpoints", c.service(i).Name, old)
}

// replacements counts them.
var replacements atomic.Int64

// send returns when the API server has answered.
func (c *cluster) send(ctx context.Context, r replacement) error {
	written, err := c.client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, r.slice, metav1.UpdateOptions{})
	if err == nil {
		c.slices[r.service][r.part] = written
	}
	return err
}
