package apiserver

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/kube"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestSource follows one server through all its cases, because a server takes
// seconds to start.
func TestSource(t *testing.T) {
	s := Start(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, *cluster)
	}{
		{"ServiceCIDRs", testServiceCIDRs}, // before others leave Services of another proxy
		{"Events", testEvents},
		{"InitialList", testInitialList},
		{"Only", testOnly},
		{"NotServed", testNotServed},
		{"NoLongerServed", testNoLongerServed},
		{"MetadataOnly", testMetadataOnly},
		{"RollingUpdate", testRollingUpdate},
		{"SliceMoves", testSliceMoves},
		{"Node", testNode},
		{"Completion", testCompletion},
		{"Nodes", testNodes},
		{"ManyAtOnce", testManyAtOnce},
		{"NoRightToServiceCIDRs", testNoRightToServiceCIDRs},
		{"ServerKilled", testServerKilled},
		{"WatchExpired", testWatchExpired},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newCluster(t, s)) })
	}
}

func testInitialList(t *testing.T, c *cluster) {
	const services = 50
	want := make(map[model.Name]string)
	for i := range services {
		s := c.createService(t, c.service(fmt.Sprintf("svc-%d", i)))
		want[c.name(s.Name)] = s.Spec.ClusterIP
	}
	c.createSlice(t, c.slice("svc-0-a", "svc-0", ready("10.1.0.1")))

	wire := newWire()
	config := rest.CopyConfig(c.server.Config)
	config.WrapTransport = wire.wrap
	sink := c.follow(t, config, "no-such-node")
	wire.expectProtobuf(t)

	sink.mu.Lock()
	defer sink.mu.Unlock()
	for name, ip := range want {
		got := sink.atSync[name]
		if got == nil || !slices.Equal(got.ClusterIPs, []netip.Addr{netip.MustParseAddr(ip)}) {
			t.Errorf("%s when synced: %+v, want cluster IP %s", name, got, ip)
		}
	}
	if _, ok := sink.slices[c.name("svc-0-a")]; !ok {
		t.Error("synced without the slice")
	}
	if len(sink.early) > 0 {
		t.Errorf("deleted before the first full list: %v", sink.early)
	}
	if sink.node != nil {
		t.Errorf("node %+v, want none", sink.node)
	}
}

// testOnly: of one Service nothing of others is told.
func testOnly(t *testing.T, c *cluster) {
	for _, name := range []string{"one", "two"} {
		c.createService(t, c.service(name))
		c.createSlice(t, c.slice(name+"-a", name, ready("10.1.0.1")))
	}
	sink, _ := c.source(t, kube.Options{Config: c.server.Config, NodeName: "no-such-node", Only: c.name("one")})
	sink.await(t, "synced", func() bool { return sink.atSync != nil })
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if sink.services[c.name("one")] == nil || sink.slices[c.name("one-a")] == nil || len(sink.services) != 1 || len(sink.slices) != 1 {
		t.Errorf("told of %v and %v", slices.Collect(maps.Keys(sink.services)), slices.Collect(maps.Keys(sink.slices)))
	}
}

func testNotServed(t *testing.T, c *cluster) {
	sink := c.follow(t, c.server.Config, "node-a")
	headless := c.service("headless")
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	proxied := c.service("proxied")
	proxied.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	external := c.service("external")
	external.Spec.Type, external.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
	for _, s := range []*corev1.Service{headless, proxied, external} {
		c.createService(t, s)
	}
	headlessSlice := c.slice("headless-a", "headless", ready("10.1.0.1"))
	headlessSlice.Labels[corev1.IsHeadlessService] = ""
	c.createSlice(t, headlessSlice)
	names := c.slice("names", "served")
	names.AddressType = discoveryv1.AddressTypeFQDN
	names.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"host.example.org"}}}
	c.createSlice(t, names)

	// Watches keep the order of changes of a kind.
	c.createService(t, c.service("served"))
	c.createSlice(t, c.slice("served-a", "served", ready("10.1.0.2")))
	sink.await(t, "the served Service and slice", func() bool {
		return sink.services[c.name("served")] != nil && sink.slices[c.name("served-a")] != nil
	})
	for _, name := range []string{"headless", "proxied", "external", "headless-a", "names"} {
		if puts, _ := sink.counts(c.name(name)); puts > 0 {
			t.Errorf("%s reached the sink", name)
		}
	}
}

func testNoLongerServed(t *testing.T, c *cluster) {
	sink := c.follow(t, c.server.Config, "node-a")
	external := c.createService(t, c.service("external"))
	proxied := c.createService(t, c.service("proxied"))
	c.createService(t, c.service("deleted"))
	known := func(name string) bool { return sink.services[c.name(name)] != nil }
	sink.await(t, "three Services", func() bool {
		return known("external") && known("proxied") && known("deleted")
	})

	external.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
	c.updateService(t, external)
	proxied.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	proxied = c.updateService(t, proxied)
	c.deleteService(t, "deleted")
	sink.await(t, "three Services gone", func() bool {
		return !known("external") && !known("proxied") && !known("deleted")
	})

	proxied.Labels = nil
	c.updateService(t, proxied)
	sink.await(t, "the Service served again", func() bool { return known("proxied") })
}

func testMetadataOnly(t *testing.T, c *cluster) {
	sink := c.follow(t, c.server.Config, "node-a")
	svc := c.createService(t, c.service("web"))
	slice := c.createSlice(t, c.slice("web-a", "web", ready("10.1.0.1")))
	for i := range 5 {
		svc.Annotations = map[string]string{"touched": fmt.Sprint(i)}
		svc.Labels = map[string]string{"touched": fmt.Sprint(i)}
		svc = c.updateService(t, svc)
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		slice = c.updateSlice(t, slice)
	}
	c.createService(t, c.service("marker"))
	c.createSlice(t, c.slice("marker-a", "marker"))
	sink.await(t, "the markers", func() bool {
		return sink.services[c.name("marker")] != nil && sink.slices[c.name("marker-a")] != nil
	})
	for _, name := range []string{"web", "web-a"} {
		if puts, deletes := sink.counts(c.name(name)); puts != 1 || deletes != 0 {
			t.Errorf("%s: %d times put and %d times deleted, want once put", name, puts, deletes)
		}
	}
}

func testRollingUpdate(t *testing.T, c *cluster) {
	sink := c.follow(t, c.server.Config, "node-a")
	c.createService(t, c.service("web"))
	slice := c.createSlice(t, c.slice("web-a", "web"))
	for _, step := range [][]discoveryv1.Endpoint{
		{ready("10.1.0.1"), ready("10.1.0.2")},
		{ready("10.1.0.1"), terminating("10.1.0.2"), ready("10.1.0.3")},
		{terminating("10.1.0.1"), ready("10.1.0.3"), ready("10.1.0.4")},
		{ready("10.1.0.3"), ready("10.1.0.4")},
	} {
		slice.Endpoints = step
		slice = c.updateSlice(t, slice)
		sink.await(t, fmt.Sprintf("endpoints %+v", step), func() bool {
			got := sink.slices[c.name("web-a")]
			return got != nil && slices.EqualFunc(got.Endpoints, step, sameEndpoint)
		})
	}
	c.createSlice(t, c.slice("web-b", "web", ready("10.1.0.5")))
	must(t, c.client.DiscoveryV1().EndpointSlices(c.namespace).Delete(t.Context(), "web-a", metav1.DeleteOptions{}))
	sink.await(t, "the second slice alone", func() bool {
		return sink.slices[c.name("web-a")] == nil && sink.slices[c.name("web-b")] != nil
	})
}

func sameEndpoint(got model.Endpoint, want discoveryv1.Endpoint) bool {
	return got.Addr.String() == want.Addresses[0] &&
		got.NodeName == *want.NodeName &&
		got.Ready == *want.Conditions.Ready &&
		got.Serving == *want.Conditions.Serving &&
		got.Terminating == *want.Conditions.Terminating
}

func testSliceMoves(t *testing.T, c *cluster) {
	sink := c.follow(t, c.server.Config, "node-a")
	slice := c.createSlice(t, c.slice("s", "blue", ready("10.1.0.1")))
	slice.Labels[discoveryv1.LabelServiceName] = "green"
	slice = c.updateSlice(t, slice)
	sink.await(t, "the slice at its new Service", func() bool {
		got := sink.slices[c.name("s")]
		return got != nil && got.Service == "green"
	})
	delete(slice.Labels, discoveryv1.LabelServiceName)
	c.updateSlice(t, slice)
	sink.await(t, "the slice of no Service gone", func() bool { return sink.slices[c.name("s")] == nil })
}

func testNode(t *testing.T, c *cluster) {
	const name = "node-test"
	sink, src := c.source(t, kube.Options{Config: c.server.Config, NodeName: name})
	sink.await(t, "synced", func() bool { return sink.atSync != nil })
	if !src.NodeMissing() {
		t.Error("the source does not tell that the cluster has no such Node")
	}
	nodes := c.client.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	must(t, err)
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	sink.await(t, "the node", func() bool { return sink.node != nil && sink.node.Name == name })
	if src.NodeMissing() {
		t.Error("the source tells that the Node is missing, which it has told of")
	}

	node.Labels = map[string]string{corev1.LabelTopologyZone: "zone-b"}
	node, err = nodes.Update(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	sink.await(t, "the node's zone", func() bool { return sink.node.Zone == "zone-b" })

	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}}
	node, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	sink.await(t, "the node's address", func() bool {
		return slices.Equal(sink.node.Addrs, []netip.Addr{netip.MustParseAddr("192.0.2.7")}) && sink.node.Zone == "zone-b"
	})

	node.Spec.PodCIDR, node.Spec.PodCIDRs = "10.244.7.0/24", []string{"10.244.7.0/24", "fd44:0:0:7::/64"}
	_, err = nodes.Update(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	sink.await(t, "the node's pod ranges", func() bool {
		return slices.Equal(sink.node.PodRanges, []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24"), netip.MustParsePrefix("fd44:0:0:7::/64")})
	})

	must(t, nodes.Delete(t.Context(), name, metav1.DeleteOptions{}))
	wait.Until(t, "the source tells that the Node is gone", src.NodeMissing)
}

func testManyAtOnce(t *testing.T, c *cluster) {
	const services, clients = 2000, 16
	sink := c.follow(t, c.server.Config, "node-a")
	ips := make([]string, services)
	var wg sync.WaitGroup
	for worker := range clients {
		wg.Go(func() {
			for i := worker; i < services; i += clients {
				s, err := c.client.CoreV1().Services(c.namespace).Create(t.Context(),
					c.service(fmt.Sprintf("svc-%d", i)), metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				ips[i] = s.Spec.ClusterIP
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for i, ip := range ips {
		name := c.name(fmt.Sprintf("svc-%d", i))
		want := []netip.Addr{netip.MustParseAddr(ip)}
		sink.await(t, fmt.Sprintf("%s with cluster IP %s", name, ip), func() bool {
			got := sink.services[name]
			return got != nil && slices.Equal(got.ClusterIPs, want)
		})
	}
}
