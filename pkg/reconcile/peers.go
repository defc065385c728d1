package reconcile

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

// peers are the nodes of the cluster, as far as they matter.
type peers struct {
	always bool // they matter without a Service that asks for the tunnel
	// askedBy are the Services whose packets go in a tunnel.
	askedBy map[model.Name]struct{}
	known   map[string]*model.Peer
	listed  bool // known are all
	set     bool // the tables need a look
}

func newPeers(opts *Options) peers {
	return peers{
		always:  opts.Forwarding.Tunnels() && !opts.NoTunnel,
		askedBy: make(map[model.Name]struct{}),
		known:   make(map[string]*model.Peer),
		set:     true,
	}
}

// matter reports whether packets go in a tunnel.
func (p *peers) matter() bool { return p.always || len(p.askedBy) > 0 }

// want notes whether the packets of a Service go in a tunnel.
func (p *peers) want(name model.Name, tunnels bool) {
	before := p.matter()
	if tunnels {
		p.askedBy[name] = struct{}{}
	} else {
		delete(p.askedBy, name)
	}
	p.set = p.set || p.matter() != before
}

// take takes what a source tells of nodes.
func (p *peers) take(u *source.Update) {
	for _, peer := range u.PutPeers {
		p.known[peer.Name] = peer
	}
	for _, name := range u.DeletePeers {
		delete(p.known, name)
	}
	p.listed = p.listed || u.PeersListed
	p.set = p.set || len(u.PutPeers)+len(u.DeletePeers) > 0 || u.PeersListed
}

// changed returns the nodes that the tables are to have; nil when they have them, and
// when those of a former agent are to stay because the source has not told of all yet.
// self is this node.
func (p *peers) changed(self *model.Node) []*model.Peer {
	if !p.set || p.matter() && !p.listed {
		return nil
	}
	p.set = false
	if !p.matter() {
		return []*model.Peer{}
	}
	list := slices.Collect(maps.Values(p.known))
	own := &model.Peer{Name: self.Name}
	if known := p.known[self.Name]; known != nil {
		*own = *known
		list = slices.DeleteFunc(list, func(p *model.Peer) bool { return p == known })
	}
	own.Addrs = slices.Concat(own.Addrs, self.Addrs)
	if !own.Tunnel.IsValid() {
		own.Tunnel = firstIPv4(own.Addrs)
	}
	return append(list, own)
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

// applyPeers brings in the nodes of the cluster and adds the Services that have backends
// on those that have changed.
func (r *Reconciler) applyPeers(w *work) {
	if w.peers == nil {
		return
	}
	affected, err := r.tables.SetNodes(w.peers, w.node.Name)
	for _, name := range affected {
		w.names[name] = struct{}{}
	}
	r.peersErr = err
}

// dropPeers takes out the nodes that are gone, now that no backend leads to them, and notes
// what has become of all.
func (r *Reconciler) dropPeers(w *work, s *Sync) {
	err := r.tables.DropNodes()
	if w.peers != nil || err != nil || r.peersErr == nil {
		r.peersOutcome(errors.Join(r.peersErr, err))
	}
	if list, changed := r.tables.Peers(); changed {
		s.Peers = list
	}
}

// peersOutcome notes what has become of the nodes. That some have no room is no failure:
// they get no packets in a tunnel.
func (r *Reconciler) peersOutcome(err error) {
	full := ""
	if err != nil && ownFault(err) {
		full, err = err.Error(), nil
	}
	if full != "" && full != r.peersFull {
		klog.InfoS("Nodes of the cluster have no room in the tables, their packets get SNAT", "err", full)
	}
	r.peersFull = full
	if r.outcome(task{part: partPeers}, err, time.Time{}) && err != nil {
		klog.ErrorS(err, "Not all nodes of the cluster are known to the datapath, trying again")
	}
}
