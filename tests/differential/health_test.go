package differential_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/beeline-lb/beeline/pkg/health"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestBesideKubeProxy compares on one cluster, which takes seconds to start.
func TestBesideKubeProxy(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	r := newRig(t)
	r.startKubeProxy()
	r.eventuallyBoth("both are healthy", "http://127.0.0.1:10256/healthz", says(200, ""))
	for _, c := range []struct {
		name string
		test func(*testing.T, *rig)
	}{
		{"MetricsPages", testMetricsPages},
		{"ServiceHealth", testServiceHealth},
		{"Metrics", testMetrics},
		{"Events", testEvents},
		{"NodeHealth", testNodeHealth},
		{"Unhealthy", testUnhealthy},
	} {
		t.Run(c.name, func(t *testing.T) {
			within := *r
			within.t = t
			c.test(t, &within)
		})
	}
}

// balanced creates a Service with a health check and returns its port.
func (r *rig) balanced(name string, families ...corev1.IPFamily) int32 {
	r.t.Helper()
	policy := corev1.IPFamilyPolicyRequireDualStack
	if len(families) == 1 {
		policy = corev1.IPFamilyPolicySingleStack
	}
	s, err := r.client.CoreV1().Services("default").Create(r.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeLoadBalancer,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			IPFamilyPolicy:        &policy,
			IPFamilies:            families,
			Ports:                 []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 443}},
		},
	}, metav1.CreateOptions{})
	r.must(err)
	return s.Spec.HealthCheckNodePort
}

// endpoint is on the node unless elsewhere.
func endpoint(addr netip.Addr, change ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses:  []string{addr.String()},
		NodeName:   new(lab.NodeName),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
	}
	for _, c := range change {
		c(&e)
	}
	return e
}

func elsewhere(e *discoveryv1.Endpoint) { e.NodeName = new("node-2") }

func terminating(e *discoveryv1.Endpoint) {
	e.Conditions.Ready, e.Conditions.Terminating = new(false), new(true)
}

func notReady(e *discoveryv1.Endpoint) {
	e.Conditions.Ready, e.Conditions.Serving = new(false), new(false)
}

// putSlice creates or replaces the slice of a Service and address type. Both ports of
// [rig.balanced] are served.
func (r *rig) putSlice(service string, family discoveryv1.AddressType, annotations map[string]string, endpoints ...discoveryv1.Endpoint) {
	r.t.Helper()
	slices := r.client.DiscoveryV1().EndpointSlices("default")
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:        service + "-" + map[discoveryv1.AddressType]string{"IPv4": "4", "IPv6": "6"}[family],
			Labels:      map[string]string{discoveryv1.LabelServiceName: service},
			Annotations: annotations,
		},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Name: new("a"), Port: new(int32(8080))}, {Name: new("b"), Port: new(int32(8443))}},
		Endpoints:   endpoints,
	}
	_, err := slices.Update(r.t.Context(), slice, metav1.UpdateOptions{})
	if err != nil {
		_, err = slices.Create(r.t.Context(), slice, metav1.CreateOptions{})
	}
	r.must(err)
}

// testServiceHealth walks a Service through the states of its endpoints. What both
// answer is compared byte for byte.
func testServiceHealth(t *testing.T, r *rig) {
	port := r.balanced("cart")
	url4 := fmt.Sprintf("http://%s:%d/", lab.Node4, port)
	url6 := fmt.Sprintf("http://[%s]:%d/", lab.Node6, port)
	r.same(t, "no slice", url4, says(503, `"localEndpoints": 0`))
	r.same(t, "no slice", url6, says(503, `"localEndpoints": 0`))
	a, b, c := lab.Backend4(1), lab.Backend4(2), lab.Backend4(3)
	for _, s := range []struct {
		name      string
		endpoints []discoveryv1.Endpoint
		code      int
		local     int
	}{
		{"one on this node", []discoveryv1.Endpoint{endpoint(a), endpoint(b, elsewhere)}, 200, 1},
		{"all on this node", []discoveryv1.Endpoint{endpoint(a), endpoint(b), endpoint(c)}, 200, 3},
		{"one of them terminating", []discoveryv1.Endpoint{endpoint(a), endpoint(b, terminating)}, 200, 1},
		{"only terminating", []discoveryv1.Endpoint{endpoint(a, terminating), endpoint(b, terminating)}, 503, 0},
		{"ready again", []discoveryv1.Endpoint{endpoint(a)}, 200, 1},
		{"not ready", []discoveryv1.Endpoint{endpoint(a, notReady)}, 503, 0},
		{"two of one address", []discoveryv1.Endpoint{endpoint(b), endpoint(b)}, 200, 1},
		{"none on this node", []discoveryv1.Endpoint{endpoint(a, elsewhere)}, 503, 0},
	} {
		r.putSlice("cart", "IPv4", nil, s.endpoints...)
		r.same(t, s.name, url4, says(s.code, fmt.Sprintf(`"localEndpoints": %d,`, s.local)))
		r.same(t, s.name, url4+"any/path?x", says(s.code, fmt.Sprintf(`"localEndpoints": %d,`, s.local)))
	}
	r.putSlice("cart", "IPv6", nil, endpoint(lab.Backend6(1)), endpoint(lab.Backend6(2)))
	r.same(t, "IPv6 has its own endpoints", url6, says(200, `"localEndpoints": 2`))
	r.same(t, "IPv6 has its own endpoints", url4, says(503, `"localEndpoints": 0`))

	single := r.balanced("single", corev1.IPv6Protocol)
	r.same(t, "single stack", fmt.Sprintf("http://[::1]:%d/", single), says(503, `"name": "single"`))
	closed := func(a *answer) bool { return a.err != nil }
	// kube-proxy answers at addresses of the Service's own family only.
	lab.Eventually(t, "Beeline answers at the node's other address", func() bool {
		return says(503, `"name": "single"`)(ask(r.beeline, fmt.Sprintf("http://%s:%d/", lab.Node4, single)))
	})
	for _, name := range []string{"cart", "single"} {
		r.must(r.client.CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	r.eventuallyBoth("the Service is deleted", url4, closed)
	r.eventuallyBoth("the Service is deleted", url6, closed)
}

// testNodeHealth: what becomes of the Node object shows on /healthz and not on /livez.
func testNodeHealth(t *testing.T, r *rig) {
	const healthz, livez = "http://127.0.0.1:10256/healthz", "http://127.0.0.1:10256/livez"
	nodes := r.client.CoreV1().Nodes()
	eligible, not := says(200, `"nodeEligible":true`), says(503, `"nodeEligible":false`)
	r.same(t, "the node stays", healthz, eligible)
	r.same(t, "the node stays", livez, says(200, `"healthy":true`))

	r.changeNode(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	})
	r.same(t, "tainted", healthz, not)
	r.same(t, "tainted", livez, says(200, `"healthy":true`))
	r.changeNode(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized", Effect: corev1.TaintEffectNoSchedule}}
		n.Finalizers = []string{"example.org/wait"}
	})
	r.same(t, "another taint", healthz, eligible)

	r.must(nodes.Delete(t.Context(), lab.NodeName, metav1.DeleteOptions{}))
	r.same(t, "about to be deleted", healthz, not)
	_, err := nodes.Patch(t.Context(), lab.NodeName, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	r.must(err)
	// kube-proxy goes on with the Node that it saw last, which had a deletionTimestamp.
	r.same(t, "deleted", healthz, not)
	r.same(t, "deleted", livez, says(200, `"healthy":true`))
	r.createNode()
	r.same(t, "there again", healthz, eligible)
}

// testUnhealthy breaks kube-proxy's nft and compares with servers of Beeline's whose
// oldest change has waited for too long.
func testUnhealthy(t *testing.T, r *rig) {
	r.must(os.WriteFile(r.broken, nil, 0o600))
	port := r.balanced("late")
	r.putSlice("late", "IPv4", nil, endpoint(lab.Backend4(1)))
	unhealthy := func(url string) *answer {
		var a *answer
		for deadline := time.Now().Add(wait.Limit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			// One family may be late before the other.
			if a = ask(r.kubeProxy, url); a.code == 503 && !strings.Contains(a.String(), `"healthy":true`) {
				return a
			}
		}
		t.Fatalf("kube-proxy is not unhealthy: %s", a)
		return nil
	}
	state := health.New(health.Options{
		Oldest:      func() time.Time { return time.Now().Add(-time.Minute) },
		Timeout:     time.Minute,
		WithoutNode: true,
		Answered:    func(string, int) {},
	})
	state.Synced(false)
	for path, page := range map[string]http.HandlerFunc{"healthz": state.Healthz, "livez": state.Livez} {
		want := unhealthy("http://127.0.0.1:10256/" + path)
		server := httptest.NewServer(page)
		response, err := http.Get(server.URL)
		r.must(err)
		got := read(response)
		server.Close()
		if got.String() != want.String() {
			t.Errorf("/%s: Beeline answers\n%s\nkube-proxy answers\n%s", path, got, want)
		}
	}
	// What Beeline serves meanwhile is not late.
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	lab.Eventually(t, "Beeline serves the Service", func() bool { return ask(r.beeline, url).code == 200 })
	r.must(os.Remove(r.broken))
	r.same(t, "kube-proxy is well again", url, says(200, `"serviceProxyHealthy": true`))
}
