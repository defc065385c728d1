package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/source/kube"
	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/kubeclient"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// cluster is an API server whose Services a host serves.
type cluster struct {
	t      *testing.T
	server *apiserver.Server
	client *kubeclient.Client
	host   *lab.Host
	agent  *lab.Agent
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, server: apiserver.Start(t)}
	c.client = c.server.Client(t)
	c.host = lab.NewHost(t)
	c.host.ServeBackends()
	c.agent = c.host.Serve(lab.AgentOptions{})
	src, err := kube.New(kube.Options{Config: c.server.Config, NodeName: lab.NodeName, Sink: c.agent.Sink()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- src.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *cluster) createService(name, clusterIP string) *corev1.Service {
	c.t.Helper()
	s, err := c.client.CoreV1().Services("default").Create(c.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP,
			Ports:     []corev1.ServicePort{{Port: 80}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// putSlice creates or updates the slice of a Service.
func (c *cluster) putSlice(service string, endpoints ...discoveryv1.Endpoint) {
	c.t.Helper()
	slices := c.client.DiscoveryV1().EndpointSlices("default")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:   service + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
		Endpoints:   endpoints,
	}
	_, err := slices.Update(c.t.Context(), slice, metav1.UpdateOptions{})
	if err != nil {
		_, err = slices.Create(c.t.Context(), slice, metav1.CreateOptions{})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func endpoint(i int, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{lab.Backend4(i).String()},
		Conditions: discoveryv1.EndpointConditions{
			Ready: new(ready), Serving: new(true), Terminating: new(!ready),
		},
	}
}

// eventuallyOnly waits until connections reach each of the backends and no other.
func (c *cluster) eventuallyOnly(to netip.AddrPort, want ...int) {
	c.t.Helper()
	wanted := make(map[netip.Addr]bool)
	for _, i := range want {
		wanted[lab.Backend4(i)] = true
	}
	var got map[netip.Addr]bool
	for deadline := time.Now().Add(wait.Limit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		got = make(map[netip.Addr]bool)
		for range 8 * len(want) {
			at, err := c.host.Reach("tcp4", to)
			if err != nil {
				got[netip.Addr{}] = true
				break
			}
			got[at.Addr()] = true
		}
		if fmt.Sprint(got) == fmt.Sprint(wanted) {
			return
		}
	}
	c.t.Fatalf("%s reaches %v, want %v", to, got, wanted)
}

// TestAPIServerToSockets rolls the endpoints of a Service through the API, also
// over the API server's death, and looks where connections go.
func TestAPIServerToSockets(t *testing.T) {
	c := newCluster(t)
	to := netip.MustParseAddrPort("10.96.0.77:80")
	c.createService("rolling", "10.96.0.77")
	c.putSlice("rolling", endpoint(1, true), endpoint(2, true))
	c.eventuallyOnly(to, 1, 2)
	for i := 1; i < 4; i++ { // one after the other goes, the next one comes
		c.putSlice("rolling", endpoint(i, false), endpoint(i+1, true))
		c.eventuallyOnly(to, i+1)
	}

	c.server.Kill()
	c.eventuallyOnly(to, 4)
	c.server.Restart(t)
	c.putSlice("rolling", endpoint(1, true), endpoint(4, true))
	c.eventuallyOnly(to, 1, 4)

	if err := c.client.CoreV1().Services("default").Delete(t.Context(), "rolling", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the deleted Service is gone from the tables", func() bool {
		have, err := c.agent.Services().Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for key := range have.Frontends {
			if key.Addr == to.Addr() {
				return false
			}
		}
		return true
	})
}

// TestManyServicesAtOnce creates 2,000 Services in parallel; all of them must be
// in the kernel.
func TestManyServicesAtOnce(t *testing.T) {
	const services = 2000
	c := newCluster(t)
	var creators sync.WaitGroup
	for creator := range 8 {
		creators.Go(func() {
			for i := creator; i < services; i += 8 {
				c.createService(fmt.Sprint("s-", i), "")
			}
		})
	}
	creators.Wait()
	lab.Eventually(t, "all Services are in the tables", func() bool {
		have, err := c.agent.Services().Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		return len(have.Names) == services+1 // and the API server's own
	})
}
