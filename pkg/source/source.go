// Package source defines what a source of Services and endpoints delivers. The
// sources themselves are its sub-packages.
package source

import (
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Update is a set of changes that belong together: the receiver makes all of
// them visible at once. Deletions name what no longer exists; deleting what is
// not known is no error. Put replaces the object of that name.
type Update struct {
	PutServices    []*model.Service
	DeleteServices []model.Name
	PutSlices      []*model.Slice
	DeleteSlices   []model.Name
	// PutNodes and DeleteNodes are nodes of the cluster, by name.
	PutNodes    []*model.Node
	DeleteNodes []string
	// NodesListed says that all nodes of the cluster have been handed over once, from a
	// source that begins to tell of them later than of the rest.
	NodesListed bool
	// LocalNode replaces what is known of this node; nil leaves it.
	LocalNode *model.LocalNode
	// LocalNodeGone says that the cluster has no such node any more. The machine is still
	// there: it keeps its addresses and its zone.
	LocalNodeGone bool
	// ServiceCIDRs replace those known of the cluster, in which an address without a
	// Service is dropped; nil leaves them.
	ServiceCIDRs []netip.Prefix
	// ForeignIPs replace with them the addresses in these ranges that are not dropped: those of
	// Services that another proxy serves.
	ForeignIPs []netip.Addr
}

// Sink takes what a source sees. Its methods may be called from several
// goroutines; they do not block on the kernel. Objects handed over are not
// changed afterwards.
type Sink interface {
	Apply(Update)
	// Synced says that all objects that exist have been applied once. Until then
	// nothing is removed from the kernel. Further calls have no effect.
	Synced()
}

// Queue counts the changes that the sources have delivered.
type Queue struct {
	Last time.Time // when the last change came in; zero before the first
	// Services and Slices count changes that no sync has taken up.
	Services, Slices int
	// ServicesTotal and SlicesTotal count all changes.
	ServicesTotal, SlicesTotal uint64
}
