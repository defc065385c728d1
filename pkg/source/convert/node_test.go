package convert

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

func TestLocalNode(t *testing.T) {
	got := LocalNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "node-1",
			Labels: map[string]string{"topology.kubernetes.io/zone": "zone-a"},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd44:0:0:1::/64", "no range"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "203.0.113.9"},
			{Type: corev1.NodeExternalIP, Address: "198.51.100.1"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeInternalIP, Address: "not an address"},
			{Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.2"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeInternalDNS, Address: "node-1.example.com"},
		}},
	})
	want := &model.LocalNode{
		Name:  "node-1",
		Zone:  "zone-a",
		Addrs: addrs("192.0.2.1", "2001:db8::1", "192.0.2.2", "198.51.100.1"),

		PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd44:0:0:1::/64")},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Node:\n got %+v\nwant %+v", got, want)
	}
}

func TestNode(t *testing.T) {
	internal := func(a string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a}
	}
	external := func(a string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: a}
	}
	for _, tt := range []struct {
		list   []corev1.NodeAddress
		tunnel string
		addrs  []string
	}{
		{[]corev1.NodeAddress{external("198.51.100.1"), internal("192.0.2.1"), internal("192.0.2.2")},
			"192.0.2.1", []string{"192.0.2.1", "192.0.2.2", "198.51.100.1"}},
		{[]corev1.NodeAddress{internal("2001:db8::1"), internal("192.0.2.1")}, "192.0.2.1", []string{"2001:db8::1", "192.0.2.1"}},
		{[]corev1.NodeAddress{external("198.51.100.1"), internal("2001:db8::1")}, "2001:db8::1", []string{"2001:db8::1", "198.51.100.1"}},
		{[]corev1.NodeAddress{external("2001:db8::1"), external("198.51.100.1")}, "198.51.100.1", []string{"2001:db8::1", "198.51.100.1"}},
	} {
		got := Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}}, Status: corev1.NodeStatus{Addresses: tt.list}})
		want := &model.Node{Name: "n", Tunnel: netip.MustParseAddr(tt.tunnel), Addrs: addrs(tt.addrs...), PodRanges: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %+v, want %+v", tt.list, got, want)
		}
	}
	if got := Node(&corev1.Node{}); got.Tunnel.IsValid() {
		t.Errorf("a node without addresses takes packets at %s", got.Tunnel)
	}
}

// TestNodeAddressesAreBounded: of the many addresses that a Node lists the first count, InternalIPs
// before ExternalIPs.
func TestNodeAddressesAreBounded(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.Unix(1000, 0)}}
	list := func(kind corev1.NodeAddressType, format string, n int) {
		for i := range n {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: fmt.Sprintf(format, i/256, i%256)})
		}
	}
	list(corev1.NodeExternalIP, "198.18.%d.%d", 3)
	list(corev1.NodeInternalIP, "2001:db8::%x:%x", 2)
	list(corev1.NodeInternalIP, "10.1.%d.%d", 12)
	list(corev1.NodeExternalIP, "198.19.%d.%d", 30000)
	got := Node(node)
	if len(got.Addrs) != 16 || got.Addrs[0] != netip.MustParseAddr("2001:db8::") || got.Addrs[13] != netip.MustParseAddr("10.1.0.11") || got.Addrs[15] != netip.MustParseAddr("198.18.0.1") {
		t.Errorf("addresses %v", got.Addrs)
	}
	if got.Left != 30001 || got.Tunnel != netip.MustParseAddr("10.1.0.0") || got.Created != 1000 {
		t.Errorf("%d others, tunnel at %s, created at %d", got.Left, got.Tunnel, got.Created)
	}
	if local := LocalNode(node); !slices.Equal(local.Addrs, got.Addrs) {
		t.Errorf("this node's are %v", local.Addrs)
	}
}

func TestNodeWithNothingKnown(t *testing.T) {
	got := LocalNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	if want := (&model.LocalNode{Name: "node-1"}); !reflect.DeepEqual(got, want) {
		t.Errorf("Node = %+v, want %+v", got, want)
	}
}

func TestNodeLeaves(t *testing.T) {
	for name, node := range map[string]*corev1.Node{
		"deleted": {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}},
		"the autoscaler is about to delete it": {Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "node.kubernetes.io/unschedulable"}, {Key: "ToBeDeletedByClusterAutoscaler", Value: "1767225600"},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			if !LocalNode(node).Leaving {
				t.Error("the node stays")
			}
		})
	}
	if LocalNode(&corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}}}}).Leaving {
		t.Error("a node with another taint leaves")
	}
}
