package apiserver

import (
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/kube"
)

// roundTrip is a function as a round tripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// testNodes: all nodes are followed from when they are asked for, by their addresses
// alone, and not before.
func testNodes(t *testing.T, c *cluster) {
	var asked atomic.Int32 // requests for all nodes
	config := rest.CopyConfig(c.server.Config)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/nodes") && r.URL.Query().Get("fieldSelector") == "" {
				asked.Add(1)
			}
			return rt.RoundTrip(r)
		})
	})
	nodes := c.client.CoreV1().Nodes()
	created := make(map[string]int64)
	create := func(name string, addrs ...corev1.NodeAddress) *corev1.Node {
		t.Helper()
		node, err := nodes.Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: addrs},
		}, metav1.CreateOptions{})
		must(t, err)
		created[name] = node.CreationTimestamp.Unix()
		return node
	}
	internal := func(addr string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr}
	}
	create("peer-a", internal("192.0.2.1"))
	b := create("peer-b", internal("2001:db8::2"), internal("192.0.2.2"))
	sink, src := c.source(t, kube.Options{Config: config, NodeName: "peer-a"})
	sink.await(t, "synced", func() bool { return sink.atSync != nil })
	// A request of the start would have come before that for a later Service's change.
	c.createService(t, c.service("later"))
	sink.await(t, "a later Service", func() bool { return sink.services[c.name("later")] != nil })
	sink.mu.Lock()
	if len(sink.nodes) > 0 || sink.listed || asked.Load() > 0 {
		t.Errorf("not asked for: %d nodes, %d requests", len(sink.nodes), asked.Load())
	}
	sink.mu.Unlock()

	src.FollowNodes()
	src.FollowNodes()
	at := func(tunnel string, more ...string) func(string) bool {
		want := model.Node{Tunnel: netip.MustParseAddr(tunnel)}
		for _, a := range more {
			want.Addrs = append(want.Addrs, netip.MustParseAddr(a))
		}
		return func(name string) bool {
			want.Name, want.Created = name, created[name]
			return reflect.DeepEqual(sink.nodes[name], &want)
		}
	}
	sink.await(t, "all nodes", func() bool {
		return sink.listed && at("192.0.2.1", "192.0.2.1")("peer-a") && at("192.0.2.2", "2001:db8::2", "192.0.2.2")("peer-b")
	})
	create("peer-c", internal("192.0.2.3"))
	b.Status.Addresses = []corev1.NodeAddress{internal("192.0.2.22")}
	_, err := nodes.UpdateStatus(t.Context(), b, metav1.UpdateOptions{})
	must(t, err)
	must(t, nodes.Delete(t.Context(), "peer-a", metav1.DeleteOptions{}))
	sink.await(t, "changes of nodes", func() bool {
		return at("192.0.2.3", "192.0.2.3")("peer-c") && at("192.0.2.22", "192.0.2.22")("peer-b") && sink.nodes["peer-a"] == nil
	})
}
