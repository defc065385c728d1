package apiserver

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/kube"
	"github.com/beeline-lb/beeline/tests/kubeclient"
)

// cluster is a namespace of the server, made for one test.
type cluster struct {
	server    *Server
	client    *kubeclient.Client
	namespace string
}

func newCluster(t *testing.T, s *Server) *cluster {
	t.Helper()
	_, base, _ := strings.Cut(t.Name(), "/")
	c := &cluster{server: s, client: s.Client(t), namespace: strings.ToLower(base)}
	_, err := c.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}, metav1.CreateOptions{})
	must(t, err)
	return c
}

// follow runs a source until t ends and waits until it is synced.
func (c *cluster) follow(t *testing.T, config *rest.Config, node string) *recorder {
	t.Helper()
	sink := c.run(t, config, node)
	sink.await(t, "synced", func() bool { return sink.atSync != nil })
	return sink
}

// run runs a source until t ends.
func (c *cluster) run(t *testing.T, config *rest.Config, node string) *recorder {
	t.Helper()
	sink, _ := c.source(t, kube.Options{Config: config, NodeName: node})
	return sink
}

// source is run that also returns the source.
func (c *cluster) source(t *testing.T, o kube.Options) (*recorder, *kube.Source) {
	t.Helper()
	sink := newRecorder()
	o.Sink = sink
	src, err := kube.New(o)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- src.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("source ended with %v", err)
		}
	})
	return sink, src
}

func (c *cluster) name(name string) model.Name {
	return model.Name{Namespace: c.namespace, Name: name}
}

// service returns a Service of one port, 80, that the server has not yet seen.
func (c *cluster) service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

func (c *cluster) createService(t *testing.T, s *corev1.Service) *corev1.Service {
	t.Helper()
	out, err := c.client.CoreV1().Services(c.namespace).Create(t.Context(), s, metav1.CreateOptions{})
	must(t, err)
	return out
}

func (c *cluster) updateService(t *testing.T, s *corev1.Service) *corev1.Service {
	t.Helper()
	out, err := c.client.CoreV1().Services(c.namespace).Update(t.Context(), s, metav1.UpdateOptions{})
	must(t, err)
	return out
}

func (c *cluster) deleteService(t *testing.T, name string) {
	t.Helper()
	must(t, c.client.CoreV1().Services(c.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// slice returns an IPv4 slice of service, port 8080.
func (c *cluster) slice(name, service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints:   endpoints,
	}
}

func (c *cluster) createSlice(t *testing.T, s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	t.Helper()
	out, err := c.client.DiscoveryV1().EndpointSlices(c.namespace).Create(t.Context(), s, metav1.CreateOptions{})
	must(t, err)
	return out
}

func (c *cluster) updateSlice(t *testing.T, s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	t.Helper()
	out, err := c.client.DiscoveryV1().EndpointSlices(c.namespace).Update(t.Context(), s, metav1.UpdateOptions{})
	must(t, err)
	return out
}

// ready returns an endpoint that takes traffic.
func ready(addr string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{addr},
		NodeName:  new("node-a"),
		Conditions: discoveryv1.EndpointConditions{
			Ready: new(true), Serving: new(true), Terminating: new(false),
		},
	}
}

// terminating returns an endpoint that shuts down and still answers.
func terminating(addr string) discoveryv1.Endpoint {
	e := ready(addr)
	e.Conditions.Ready, e.Conditions.Terminating = new(false), new(true)
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
