// Package differential compares Beeline with kube-proxy: random clusters are served by both,
// and what clients come to must be the same.
//
//	generate.go  random clusters, and random changes of them
//	world.go     a node with its proxy, pods and neighbours
//	probe.go     which clients ask for what, and what the contract says of it
//	traffic.go   connections and datagrams, many at a time
//	compare.go   what differs
//	excuse.go    what may differ, and where that is documented
//	minimise.go  the smallest cluster that shows a difference
//
// In the same clusters, connections end as the beeline command explains before (explain*_test.go).
package differential

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// cluster is a state of the API objects that a proxy follows, and of the node's addresses.
type cluster struct {
	zone     string // of the node
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
	// addrs are on the node's uplink beside its own.
	addrs []netip.Addr
}

// clone returns a copy that shares nothing.
func (c *cluster) clone() *cluster {
	out := &cluster{zone: c.zone, addrs: append([]netip.Addr(nil), c.addrs...)}
	for _, s := range c.services {
		out.services = append(out.services, s.DeepCopy())
	}
	for _, s := range c.slices {
		out.slices = append(out.slices, s.DeepCopy())
	}
	return out
}

// service returns the Service of a name, or nil.
func (c *cluster) service(name string) *corev1.Service {
	for _, s := range c.services {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// String returns the cluster as manifests.
func (c *cluster) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# node %s in zone %s, with more addresses: %v\n", nodeName, c.zone, c.addrs)
	write := func(apiVersion, kind string, o any) {
		text, err := yaml.Marshal(o)
		if err != nil {
			text = []byte(err.Error())
		}
		text = bytes.ReplaceAll(text, []byte("status:\n  loadBalancer: {}\n"), nil)
		fmt.Fprintf(&b, "---\napiVersion: %s\nkind: %s\n%s", apiVersion, kind, text)
	}
	for _, s := range c.services {
		write("v1", "Service", s)
	}
	for _, s := range c.slices {
		write("discovery.k8s.io/v1", "EndpointSlice", s)
	}
	return b.String()
}
