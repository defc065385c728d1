package differential_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
)

// inZone makes an endpoint one that only a zone is to use.
func inZone(zone string) func(*discoveryv1.Endpoint) {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
}

// TestNodeChanges changes the Node object under a running agent and looks where
// connections go, and which addresses answer.
func TestNodeChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, "--nodeport-addresses=primary")
	r.beeline.ServeBackends()
	port := r.balanced("zoned", corev1.IPv4Protocol)
	s, err := r.client.CoreV1().Services("default").Get(t.Context(), "zoned", metav1.GetOptions{})
	r.must(err)
	r.putSlice("zoned", "IPv4", nil, endpoint(lab.Backend4(1), inZone("east")), endpoint(lab.Backend4(2), inZone("west")))
	cluster := netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), 80)
	setZone := func(zone string) {
		r.changeNode(func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: zone} })
	}
	goesTo := func(what string, want ...netip.Addr) {
		t.Helper()
		lab.Eventually(t, what, func() bool {
			got := make(map[netip.Addr]bool)
			for range 20 {
				at, err := r.beeline.Reach("tcp4", cluster)
				if err != nil {
					return false
				}
				got[at.Addr()] = true
			}
			for _, w := range want {
				if !got[w] {
					return false
				}
			}
			return len(got) == len(want)
		})
	}
	lab.Eventually(t, "an address of the cluster that no Service has", func() bool {
		_, err := r.beeline.Reach("tcp4", netip.MustParseAddrPort("10.96.200.200:80"))
		return err == unix.EHOSTUNREACH
	})
	goesTo("a node of no zone uses all", lab.Backend4(1), lab.Backend4(2))
	setZone("west")
	goesTo("the zone of the node", lab.Backend4(2))
	setZone("east")
	goesTo("the node's new zone", lab.Backend4(1))

	moved := netip.MustParseAddr("192.0.2.7")
	r.beeline.AddAddr(lab.Uplink, moved.String()+"/24")
	answers := func(what string, yes, no netip.Addr) {
		t.Helper()
		nodePort := uint16(s.Spec.Ports[0].NodePort)
		lab.Eventually(t, what, func() bool {
			_, there := r.beeline.Reach("tcp4", netip.AddrPortFrom(yes, nodePort))
			_, gone := r.beeline.Reach("tcp4", netip.AddrPortFrom(no, nodePort))
			good := ask(r.beeline, fmt.Sprintf("http://%s:%d/", yes, port))
			refused := ask(r.beeline, fmt.Sprintf("http://%s:%d/", no, port))
			return there == nil && gone != nil && good.code == 200 && refused.err != nil
		})
	}
	answers("the node's primary address", lab.Node4, moved)
	r.changeNode(func(n *corev1.Node) { n.Status.Addresses[0].Address = moved.String() })
	answers("the node's new address", moved, lab.Node4)

	r.must(r.client.CoreV1().Nodes().Delete(t.Context(), lab.NodeName, metav1.DeleteOptions{}))
	lab.Eventually(t, "the agent knows that its Node is gone", func() bool {
		return ask(r.beeline, "http://127.0.0.1:10256/healthz").code == 503
	})
	goesTo("the zone that the node had", lab.Backend4(1))
	answers("the address that the node had", moved, lab.Node4)

	r.createNode()
	setZone("west")
	goesTo("the zone of the new Node", lab.Backend4(2))
	answers("the address of the new Node", lab.Node4, moved)
	lab.Eventually(t, "the node is eligible", func() bool {
		return ask(r.beeline, "http://127.0.0.1:10256/healthz").code == 200
	})
}

// TestAddressInUse: an agent whose health address is taken serves all the same, says
// why, and has the address once it is free. Under bindAddressHardFail it ends.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, server: apiserver.Start(t)}
	r.client = r.server.Client(t)
	r.createNode()
	r.beeline = r.newHost()
	var taken [2]net.Listener
	for i, addr := range []string{"0.0.0.0:10256", "127.0.0.1:10249"} {
		r.must(r.beeline.Run(func() (err error) {
			taken[i], err = net.Listen("tcp4", addr)
			return err
		}))
		defer taken[i].Close()
	}
	r.startAgent()
	for _, reason := range []string{"FailedToStartProxierHealthcheck", "FailedToStartMetricServer"} {
		lab.Eventually(t, "the event "+reason, func() bool {
			list, err := r.client.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
			r.must(err)
			for _, e := range list.Items {
				if e.Reason == reason && e.Type == "Warning" && e.Regarding.Name == lab.NodeName && strings.Contains(e.Note, "in use") {
					return true
				}
			}
			return false
		})
	}
	for _, l := range taken {
		l.Close()
	}
	for _, url := range []string{"http://127.0.0.1:10256/healthz", metricsAddress + "/healthz"} {
		lab.Eventually(t, url, func() bool { return ask(r.beeline, url).code == 200 })
	}

	second := r.beeline.Start(lab.AgentBinary(t), "--kubeconfig", r.server.Kubeconfig, "--hostname-override", lab.NodeName,
		"--cgroup-root", lab.NewCgroup(t), "--bpffs", lab.NewBPFFS(t), "--devices=none",
		"--metrics-bind-address=", "--bind-address-hard-fail")
	lab.Eventually(t, "the agent has ended", second.Ended)
	if second.Wait() == nil || !strings.Contains(second.Output(), "0.0.0.0:10256") {
		t.Errorf("the agent ended without saying why:\n%s", second.Output())
	}
}
