// Package policy decides which endpoints each class of traffic may reach.
//
// The functions are pure: they read the model and know neither tables nor the
// kernel. The rules are those of kube-proxy v1.36; KEP-1669 is where terminating
// endpoints come from, KEP-2433 and KEP-3015 topology hints.
//
// It exports more than 25 names because each rule has a function, and those who follow it each
// have one of their own.
package policy

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Kind is the outcome of a connection to a set.
type Kind uint8

// The kinds of a set.
const (
	// Reject rejects the connection: no endpoint is usable anywhere.
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
	AddrPort netip.AddrPort
	// NodeName is the node that the endpoint runs on; "" is unknown.
	NodeName string
	// Weight is the share of new connections; 0 gets none.
	Weight      uint16
	Ready       bool
	Serving     bool
	Terminating bool
	// OnNode says that the endpoint runs on the node the sets are made for.
	OnNode bool
	// InCluster and InLocal say which of the sets it is in; in none, it keeps what it serves.
	InCluster, InLocal bool
}

// InSet reports whether the endpoint gets new connections of any client.
func (b *Backend) InSet() bool { return b.InCluster || b.InLocal }

// Sets are the two sets of one family of a Service port: what each class of traffic
// may reach.
type Sets struct {
	// Cluster is for traffic under the policy Cluster.
	Cluster Kind
	// Local is for traffic under the policy Local, whether or not the Service
	// has such a policy.
	Local Kind
	// Backends are all that serve, see [InUse], in the order of their AddrPort, which is there
	// once. There are some of a weight in a set whose kind is Backends; otherwise those
	// that there are have none, and keep what they serve.
	Backends []Backend
}

// Select returns the sets of one family of a port of svc. list are all the
// slices of the Service, ordered by name: the order decides between endpoints of
// the same address and port. node must not be nil; of an unknown name or zone
// (empty) nothing is local or hinted at.
func Select(svc *model.Service, port model.ServicePort, family model.Family, list []*model.Slice, node *model.LocalNode) Sets {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	return s.all(svc, s.targetsOf(port, family, list), node)
}

// all returns the sets with all endpoints of the targets.
func (s *scratch) all(svc *model.Service, targets []target, node *model.LocalNode) (sets Sets) {
	eps := s.sets(svc, targets, node, math.MaxInt)
	eject(eps, svc)
	sets.Cluster, sets.Local = kinds(eps)
	sets.Backends = backends(eps)
	return sets
}

// kinds returns the kinds of the sets.
func kinds(eps []endpoint) (cluster, local Kind) {
	for i := range eps {
		e := &eps[i]
		if e.inCluster && e.weight > 0 {
			cluster = Backends
		}
		if e.inLocal && e.weight > 0 {
			local = Backends
		}
	}
	// The Cluster set is empty only when nothing is usable anywhere: hints never
	// filter out the last Ready endpoint with a weight.
	if cluster == Backends && local != Backends {
		local = Drop
	}
	return cluster, local
}

// backends returns the endpoints that serve.
func backends(eps []endpoint) []Backend {
	list := make([]Backend, 0, len(eps))
	for i := range eps {
		if InUse(eps[i].from) {
			list = append(list, eps[i].backend())
		}
	}
	return list
}

// sets returns the endpoints, as of [scratch.endpoints], with their weights in the sets, and which of
// them are in the Cluster set and in the Local set.
func (s *scratch) sets(svc *model.Service, targets []target, node *model.LocalNode, limit int) []endpoint {
	eps := s.endpoints(svc, targets, node, limit)
	cluster, local := clusterFilter(eps, node), localFilter(eps)
	if svc.SpillOver.Used && hintsOf(eps, node) == zoneHints {
		spill(eps, svc.ZoneShares, node)
		cluster = func(e *endpoint) bool { return e.ready }
	}
	for i := range eps {
		e := &eps[i]
		e.inCluster, e.inLocal = cluster(e), local(e)
	}
	return eps
}

// clusterFilter returns which endpoints are in the Cluster set.
func clusterFilter(eps []endpoint, node *model.LocalNode) func(*endpoint) bool {
	if !slices.ContainsFunc(eps, func(e endpoint) bool { return e.ready }) {
		return (*endpoint).draining
	}
	hinted := hintFilter(eps, node)
	return func(e *endpoint) bool { return e.ready && hinted(e) }
}

// localFilter returns which endpoints are in the Local set.
func localFilter(eps []endpoint) func(*endpoint) bool {
	if !slices.ContainsFunc(eps, func(e endpoint) bool { return e.onNode && e.ready }) {
		return func(e *endpoint) bool { return e.onNode && e.draining() }
	}
	return func(e *endpoint) bool { return e.onNode && e.ready }
}
