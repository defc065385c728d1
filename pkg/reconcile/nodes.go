package reconcile

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/source"
)

// nodes are the nodes of the cluster, as far as they matter.
type nodes struct {
	always bool // they matter without a Service that asks for the tunnel
	// askedBy are the Services whose packets go in a tunnel.
	askedBy map[model.Name]struct{}
	known   map[string]*model.Node
	lost    []policy.LostAddr // that the log has told of
	listed  bool              // known are all
	set     bool              // the tables need a look
}

func newNodes(opts *Options) nodes {
	return nodes{
		always:  opts.Forwarding.Tunnels() && !opts.NoTunnel,
		askedBy: make(map[model.Name]struct{}),
		known:   make(map[string]*model.Node),
		set:     true,
	}
}

// matter reports whether packets go in a tunnel.
func (n *nodes) matter() bool { return n.always || len(n.askedBy) > 0 }

// want notes whether the packets of a Service go in a tunnel.
func (n *nodes) want(name model.Name, tunnels bool) {
	before := n.matter()
	if tunnels {
		n.askedBy[name] = struct{}{}
	} else {
		delete(n.askedBy, name)
	}
	n.set = n.set || n.matter() != before
}

// take takes a source's update of nodes.
func (n *nodes) take(u *source.Update) {
	for _, node := range u.PutNodes {
		n.known[node.Name] = node
	}
	for _, name := range u.DeleteNodes {
		delete(n.known, name)
	}
	n.listed = n.listed || u.NodesListed
	n.set = n.set || len(u.PutNodes)+len(u.DeleteNodes) > 0 || u.NodesListed
}

// due reports whether the tables are to have other nodes than they may.
func (n *nodes) due() bool { return n.set && (n.listed || !n.matter()) }

// changed returns the nodes that the tables are to have; nil when they have them, and
// when those of a former agent are to stay because the source has not told of all yet.
// self is this node.
func (n *nodes) changed(self *model.LocalNode) []*model.Node {
	if !n.due() {
		return nil
	}
	n.set = false
	if !n.matter() {
		return []*model.Node{}
	}
	list := n.list(self.Name)
	own := &model.Node{Name: self.Name}
	if i := slices.IndexFunc(list, func(n *model.Node) bool { return n.Name == self.Name }); i >= 0 {
		*own = *list[i]
		list = slices.Delete(list, i, i+1)
	}
	own.Addrs = slices.Concat(own.Addrs, self.Addrs)
	if !own.Tunnel.IsValid() {
		own.Tunnel = firstIPv4(own.Addrs)
	}
	return append(list, own)
}

// list returns the nodes that are known, each with the addresses that it alone has, and logs which
// others they list. self is this node.
func (n *nodes) list(self string) []*model.Node {
	list, lost := policy.OwnAddrs(slices.Collect(maps.Values(n.known)), self)
	if len(lost) > 0 && !slices.Equal(lost, n.lost) {
		klog.InfoS("Nodes list addresses of other nodes, which keep them", "addresses", len(lost),
			"first", lost[0].Addr, "node", lost[0].Node, "keptBy", lost[0].Holder)
	}
	n.lost = lost
	return list
}

// firstIPv4 returns the first address of IPv4, or of IPv6 when there is none.
func firstIPv4(addrs []netip.Addr) (first netip.Addr) {
	for _, a := range addrs {
		if !first.IsValid() || first.Is6() && a.Is4() {
			first = a
		}
	}
	return first
}

// applyNodes brings in the nodes of the cluster, adds the Services that have backends
// on those that have changed, and records the ranges of their pods.
func (r *Reconciler) applyNodes(w *work, s *result) {
	if w.nodes == nil {
		return
	}
	affected, err := r.tables.SetNodes(w.nodes, w.localNode.Name)
	for _, name := range affected {
		w.names[name] = struct{}{}
	}
	r.nodesErr = err
	ranges := []netip.Prefix{}
	for _, n := range w.nodes {
		ranges = append(ranges, n.PodRanges...)
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	if r.podRanges == nil || !slices.Equal(ranges, r.podRanges) {
		r.podRanges, s.podRanges = ranges, ranges
	}
}

// dropNodes takes out the nodes that are gone, now that no backend leads to them, and records
// the outcome of all.
func (r *Reconciler) dropNodes(w *work, s *result) {
	err := r.tables.DropNodes()
	if w.nodes != nil || err != nil || r.nodesErr == nil {
		r.nodesOutcome(errors.Join(r.nodesErr, err))
	}
	if list, changed := r.tables.Nodes(); changed {
		s.nodes = list
	}
}

// nodesOutcome records the outcome of the nodes. Nodes without room are no failure: they get
// no packets in a tunnel.
func (r *Reconciler) nodesOutcome(err error) {
	full := ""
	if err != nil && ownFault(err) {
		full, err = brief(err).Error(), nil
	}
	if full != "" && full != r.nodesFull {
		klog.InfoS("Nodes of the cluster have no room in the tables, their packets get SNAT", "err", full)
	}
	r.nodesFull = full
	if r.outcome(task{part: partNodes}, err, time.Time{}) && err != nil {
		klog.ErrorS(brief(err), "Not all nodes of the cluster are known to the datapath, trying again")
	}
}
