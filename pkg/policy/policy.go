// Package policy decides which endpoints each class of traffic may reach.
//
// The functions are pure: they read the model and know neither tables nor the
// kernel. The rules are those of kube-proxy v1.36; KEP-1669 is where terminating
// endpoints come from, KEP-2433 and KEP-3015 topology hints.
package policy

import (
	"fmt"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Kind is what happens to a connection that meets a set.
type Kind uint8

// The kinds of a set.
const (
	// Reject refuses: no endpoint is usable anywhere.
	Reject Kind = iota
	// Drop gives no answer: endpoints are usable, but none on this node.
	Drop
	// Backends sends to one of the set's backends.
	Backends
)

// String returns the kind in lower case.
func (k Kind) String() string {
	switch k {
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	case Backends:
		return "backends"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Backend is an endpoint at the target port of one Service port.
type Backend struct {
	AddrPort    netip.AddrPort
	Ready       bool
	Serving     bool
	Terminating bool
	// NodeName is the node that the endpoint runs on; "" is unknown.
	NodeName string
	// OnNode says that the endpoint runs on the node the sets are made for.
	OnNode bool
	// Weight is the share of new connections; 0 gets none.
	Weight uint16
}

// draining says that the endpoint is on its way out but still answers: it is
// used when there is no Ready one.
func (b *Backend) draining() bool { return b.Serving && b.Terminating }

// Set is what a class of traffic may reach.
type Set struct {
	Kind Kind
	// Backends are in the order of their AddrPort, which is there once. There
	// are some of a weight if Kind is Backends; otherwise those that there are have
	// none, and keep what they serve.
	Backends []Backend
}

// Sets are the two sets of one family of a Service port.
type Sets struct {
	// Cluster is for traffic under the policy Cluster.
	Cluster Set
	// Local is for traffic under the policy Local, whether or not the Service
	// has such a policy.
	Local Set
}

// Select returns the sets of one family of a port of svc. slices are all the
// slices of the Service, ordered by name: the order decides between endpoints of
// the same address and port. node must not be nil; of an unknown name or zone
// (empty) nothing is local or hinted at.
func Select(svc *model.Service, port model.ServicePort, family model.Family, slices []*model.Slice, node *model.Node) Sets {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.listed = join(s.listed[:0], port, family, slices, node)
	weigh(s.listed, svc.ZoneWeights)
	eps := s.unique()

	hinted := hintFilter(eps, node)
	cluster := pick(eps, func(e *endpoint) bool { return e.Ready && hinted(e) })
	if len(cluster) == 0 {
		cluster = pick(eps, func(e *endpoint) bool { return e.draining() })
	}
	local := pick(eps, func(e *endpoint) bool { return e.OnNode && e.Ready })
	if len(local) == 0 {
		local = pick(eps, func(e *endpoint) bool { return e.OnNode && e.draining() })
	}

	// The Cluster set is empty only when nothing is usable anywhere: hints never
	// filter out the last Ready endpoint.
	sets := Sets{Cluster: newSet(cluster, Reject)}
	none := Reject
	if sets.Cluster.Kind == Backends {
		none = Drop
	}
	sets.Local = newSet(local, none)
	return sets
}

// newSet returns the set of backends, of kind none when no backend has a weight.
func newSet(backends []Backend, none Kind) Set {
	for i := range backends {
		if backends[i].Weight > 0 {
			return Set{Kind: Backends, Backends: backends}
		}
	}
	return Set{Kind: none, Backends: backends}
}

// pick returns the backends that match, in order, or nil.
func pick(eps []endpoint, match func(*endpoint) bool) []Backend {
	n := 0
	for i := range eps {
		if match(&eps[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	backends := make([]Backend, 0, n)
	for i := range eps {
		if match(&eps[i]) {
			backends = append(backends, eps[i].Backend)
		}
	}
	return backends
}
