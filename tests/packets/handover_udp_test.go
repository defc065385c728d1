package packets_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
)

// testHandoverUDP: UDP sockets of the node and of a pod that kube-proxy has led to an endpoint stay with it
// while Beeline takes over, and reach another one when it is gone, by the Service's address.
func testHandoverUDP(t *testing.T, server *apiserver.Server, m proxyMode) {
	c := newCluster(t, false)
	c.serveAll(t)
	node, client := c.nodes[0], server.Client(t)
	i := 20 + slices.Index(proxyModes, m)
	name := "udp-" + m.name
	for _, text := range c.service(i, name, "ipFamilyPolicy: RequireDualStack,", []endpoint{local}) {
		if err := create(t.Context(), client, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	proxy := newKubeProxy(t, server, node.Namespace, m)
	proxy.start()
	open := make(map[string]*lab.Socket)
	for _, network := range networks[2:] {
		for who, n := range map[string]*lab.Namespace{"the node": node.Namespace, "a pod": node.bridged} {
			s := n.Socket(network)
			defer s.Close()
			if err := s.Connect(netip.AddrPortFrom(clusterIP(i).of(network), 80)); err != nil {
				t.Fatal(err)
			}
			open[who+" by "+network] = s
		}
	}
	staysAt := func(when string, e endpoint) {
		t.Helper()
		for who, s := range open {
			if hello, err := talkUDP(s, "hello"); err != nil || hello.name != e.server() {
				t.Fatalf("%s %s reaches %q, want %q: %v", when, who, hello.name, e.server(), err)
			}
		}
	}
	staysAt("with kube-proxy", local)
	startClusterAgent(t, server, node)
	staysAt("with both", local)
	proxy.stop()
	cleanupByAgent(t, node.Namespace)
	staysAt("after the cleanup", local)

	for _, next := range []endpoint{remote, otherLocal} {
		for family := range 2 {
			var slice discoveryv1.EndpointSlice
			if err := yaml.UnmarshalStrict([]byte(c.slice(name, family, []endpoint{next})), &slice); err != nil {
				t.Fatal(err)
			}
			if _, err := client.DiscoveryV1().EndpointSlices(slice.Namespace).Update(t.Context(), &slice, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for who, s := range open {
			lab.Eventually(t, fmt.Sprintf("%s moves to %s", who, next.server()), func() bool {
				hello, err := talkUDP(s, "hello")
				return err == nil && hello.name == next.server()
			})
		}
	}
}
