package datapath

import (
	"net/netip"
	"slices"
)

// pods are the ranges of the cluster's pods that are told while the datapath runs.
type pods struct {
	own   []netip.Prefix // of this node's, by its Node object
	nodes []netip.Prefix // of all Nodes; nil: not told yet
	// written are those that the programs know, by a former agent at first; nil: not read yet.
	written []netip.Prefix
}

// SetOwnPods replaces the ranges of this node's pods. Without any, and with [Internal.OfNode],
// they are not known: the former ones hold. The programs know at once; what cannot be written is
// tried again by the next [Datapath.SyncDevices], which also heeds them in the choice of devices.
func (d *Datapath) SetOwnPods(ranges []netip.Prefix) {
	d.setPods(func(p *pods) { p.own = ranges })
}

// SetPodsOfNodes likewise replaces the ranges of all nodes' pods, none while no packets go in a
// tunnel. Until it is called the former ones hold.
func (d *Datapath) SetPodsOfNodes(ranges []netip.Prefix) {
	d.setPods(func(p *pods) { p.nodes = append([]netip.Prefix{}, ranges...) })
}

func (d *Datapath) setPods(change func(*pods)) {
	d.podsMu.Lock()
	change(&d.pods)
	d.podsMu.Unlock()
	if _, err := d.writePods(); err != nil || d.opts.Internal.OfNode {
		d.lookAgain()
	}
}

// writePods writes where pods are, as far as it is known: a client there may be beside its backend,
// however clients inside of the cluster are recognised. It returns the ranges.
func (d *Datapath) writePods() ([]netip.Prefix, error) {
	d.podsMu.Lock()
	defer d.podsMu.Unlock()
	if d.pods.written == nil {
		former, err := d.deviceMap.LocalCIDRs()
		if err != nil {
			return nil, err
		}
		d.pods.written = append([]netip.Prefix{}, former...)
	}
	ranges, all := d.podRanges()
	if !all {
		ranges = append(ranges, d.pods.written...)
	}
	written, err := d.deviceMap.SetLocalCIDRs(ranges)
	if err == nil {
		d.pods.written = written
	}
	return ranges, err
}

// podRanges returns where pods are, as far as it has been told, and whether that is all.
func (d *Datapath) podRanges() (ranges []netip.Prefix, all bool) {
	all = d.pods.nodes != nil && (len(d.pods.own) > 0 || !d.opts.Internal.OfNode)
	return slices.Concat(d.opts.ClusterCIDRs, d.pods.own, d.pods.nodes), all
}

// mendPods writes the ranges of pods again where they are not as they were written, and reports whether
// they were not.
func (d *Datapath) mendPods() (bool, error) {
	d.podsMu.Lock()
	have, err := d.deviceMap.LocalCIDRs()
	changed := err == nil && d.pods.written != nil && !slices.Equal(have, d.pods.written)
	d.podsMu.Unlock()
	if changed {
		_, err = d.writePods()
	}
	return changed, err
}

// ownPods returns the ranges by which addresses of this machine are told from those of its pods,
// beside [Options.ClusterCIDRs]: those of all pods where Nodes say which they are.
func (d *Datapath) ownPods(all []netip.Prefix) []netip.Prefix {
	if d.opts.Internal.OfNode {
		return all
	}
	return nil
}
