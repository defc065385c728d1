// Package reconcile is the agent's control loop: it collects the changes of the
// sources, applies the Services that they touch to the tables, and retries those
// that failed. Its work for a change does not grow with the number of Services.
package reconcile

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// retireDelay is how long ids and slots that were taken out of the tables are kept before the
// kernel is asked to wait for running programs (a grace period): one wait is then for all changes
// of that time. It costs as much CPU time as a change, for the Go runtime looks after a thread
// that does not come back from the kernel.
const retireDelay = 100 * time.Millisecond

// Options configure a [Reconciler].
type Options struct {
	// LocalNode is this node until a source has delivered its Node.
	LocalNode model.LocalNode
	// NodePortAddresses selects where NodePorts answer.
	NodePortAddresses policy.NodePortAddresses
	// Algorithm is the default load-balancing algorithm, of Services which name none.
	Algorithm model.Algorithm
	// LocalityRefused is the reason why no Service can have an algorithm that localizes; "" when
	// they can.
	LocalityRefused string
	// Forwarding is the default forwarding mode, of Services which name none.
	Forwarding model.Forwarding
	// ForwardingRefused is the reason why no Service's packets can go in a tunnel; "" when
	// they can.
	ForwardingRefused string
	// NoTunnel says that this node takes no part in the tunnel, whatever Services ask.
	NoTunnel bool
	// FollowNodes is called, perhaps several times, when the nodes of the cluster are first
	// needed, for the tunnel or zone spill-over; nil when the source delivers them anyway.
	FollowNodes func()
	// Faults, unless nil, is called with the wrong settings of a Service and its slices when
	// they have changed, with none when all is well again. added are those that were not there
	// before.
	Faults func(service model.Name, all, added []model.Fault)
	// Failed, unless nil, is called each time that a Service could not be applied in full, and
	// with nil once it has been.
	Failed func(service model.Name, f *Failure)
	// Outliers is the default outlier detection, of Services which name none.
	Outliers model.Outliers
	// Ejects says that endpoints which fail are ejected, and let in again; else those are left out
	// that are.
	Ejects bool
	// Ejected, unless nil, is told at each look at the endpoints of the Services that ask for
	// outlier detection how many are ejected, and how many of them by this look.
	Ejected func(now, more int)
	// Ejection, unless nil, is told of each endpoint that is ejected or let in again.
	Ejection func(Ejection)
	// Terminating, unless nil, is told of the endpoints of a Service that terminate on this node, each
	// time that it is applied.
	Terminating func(service model.Name, endpoints []netip.AddrPort)
	// SpillOvers, unless nil, is told which Services have zone spill-over, model.MaxSpillOvers at most, of
	// the nodes of the cluster, and of this node. [Reconciler.SetDemand] is to be told of them.
	SpillOvers func(services []model.Name, nodes []*model.Node, self *model.LocalNode)
	// MinSyncPeriod is the shortest time between two syncs.
	MinSyncPeriod time.Duration
	// Complete is called once, when the tables hold all that exists. An error ends
	// Run.
	Complete func(context.Context) error

	// CheckPeriod is how often the store is compared with what was written to it, which mends
	// what differs; 0 is never.
	CheckPeriod time.Duration
	// Checked is told of each comparison that has ended. nil is not told.
	Checked func(Checked)
	// Waiting is told, at each change of it, when the oldest change came in that waits for a
	// sync or is in the one under way; zero: none. It must not block. nil is not told.
	Waiting func(since time.Time)

	// The following are called at the end of a sync, in this order, unless nil.

	// Metrics gets the measurements of every sync.
	Metrics Metrics
	// HealthChecks gets, after every sync, the healthCheckNodePorts that have changed, and the
	// addresses on which NodePorts answer, nil when these are as before.
	HealthChecks func(changed []policy.HealthCheck, nodePorts []netip.Addr)
	// PodRanges gets the ranges of the pods of all nodes when they have changed, and in the first
	// sync that knows them; none while no packets go in a tunnel.
	PodRanges func([]netip.Prefix)
	// Nodes gets the nodes of the cluster when they have changed.
	Nodes func([]tables.NodeUse)
	// UDPLeft is called when endpoints of UDP may have gone, or frontends of UDP lead to other
	// Services: before this agent, too, in the first sync.
	UDPLeft func()
	// Synced is called last, after every sync.
	Synced func(Sync)
}

// Sync is the outcome of one sync.
type Sync struct {
	Start    time.Time
	Duration time.Duration
	Services int // applied
	Pending  int // failed, to be tried again
	Limited  int // Services that get less than they ask for
	// Stuck says that a write failed for a reason that is no Service's own fault.
	Stuck bool
}

// Reconciler is a [source.Sink] that writes into tables. Make one with [New].
type Reconciler struct {
	opts   Options
	tables *tables.Tables
	store  tables.Store

	mu           sync.Mutex
	services     map[model.Name]*model.Service
	slices       map[model.Name]map[string]*model.Slice // by Service, by slice
	owner        map[model.Name]model.Name              // slice → Service
	localNode    model.LocalNode
	local        []netip.Addr
	cidrs        []netip.Prefix
	foreign      []netip.Addr
	nodes        nodes
	spillOvers   spillOvers
	dirty        map[model.Name]struct{}
	localNodeSet bool // node addresses need a look
	synced       bool // the source is complete
	udpLeft      bool // for the next sync
	queue        source.Queue
	triggers     map[model.Name][]trigger // by Service
	// When the oldest change came in that waits for a sync, is in the one under way,
	// or has failed; zero is none.
	queued, applying, stuck time.Time
	syncing                 bool
	waiting                 time.Time // as told last, see Options

	retries retries
	wake    chan struct{}
	started time.Time

	// Of the loop only.
	failed     map[task]failure
	faults     map[model.Name][]model.Fault
	starts     map[model.Name]*starts // of Services with slow start
	outliers   outliers
	limited    int            // Services that get less than they ask for
	podRanges  []netip.Prefix // of all nodes, as told last; nil: never
	nodesErr   error          // of the last attempt to write the nodes of the cluster
	nodesFull  string         // the nodes for which there is no room, as logged
	checks     map[place]policy.HealthCheck
	noLocal    map[place]noLocals // those that are not zero
	noLocalSum map[model.Family]noLocals
	complete   bool
	pruned     bool
	waited     chan error     // the outcome of the barrier
	retired    tables.Retired // waits for the barrier
	check      check
	retiring   bool // a barrier is on its way
	retiredDue bool // one that failed is to be tried again
	barrier    sync.WaitGroup
}

// New returns a reconciler over tables and the store below them, which may be an [OutlierStore].
func New(t *tables.Tables, store tables.Store, opts Options) *Reconciler {
	counts, _ := store.(OutlierStore)
	return &Reconciler{
		opts:         opts,
		tables:       t,
		store:        store,
		services:     make(map[model.Name]*model.Service),
		slices:       make(map[model.Name]map[string]*model.Slice),
		owner:        make(map[model.Name]model.Name),
		localNode:    opts.LocalNode,
		nodes:        newNodes(&opts),
		spillOvers:   spillOvers{shares: make(map[model.Name]map[string]uint16)},
		dirty:        make(map[model.Name]struct{}),
		localNodeSet: true,
		wake:         make(chan struct{}, 1),
		started:      time.Now(),
		triggers:     make(map[model.Name][]trigger),
		failed:       make(map[task]failure),
		retries:      retries{due: make(map[task]struct{})},
		faults:       make(map[model.Name][]model.Fault),
		starts:       make(map[model.Name]*starts),
		outliers:     outliers{store: counts, services: make(map[model.Name]model.Outliers), trials: make(map[uint32]time.Duration), back: make(map[uint32]time.Duration)},
		waited:       make(chan error, 1),

		checks:     make(map[place]policy.HealthCheck),
		noLocal:    make(map[place]noLocals),
		noLocalSum: make(map[model.Family]noLocals),
	}
}

// Apply takes changes from a source.
func (r *Reconciler) Apply(u source.Update) {
	r.mu.Lock()
	r.note(&u)
	r.noteLeft(&u)
	for _, s := range u.PutServices {
		r.services[s.Name] = s
		r.nodes.want(s.Name, r.forwarding(s).Tunnels())
		r.wantSpillOver(s.Name, r.asksForSpillOver(s))
		r.touch(s.Name)
	}
	for _, name := range u.DeleteServices {
		delete(r.services, name)
		r.nodes.want(name, false)
		r.wantSpillOver(name, false)
		r.touch(name)
	}
	r.nodes.take(&u)
	for _, s := range u.PutSlices {
		r.dropSlice(s.Name)
		r.putSlice(s)
		r.trigger(s)
	}
	for _, name := range u.DeleteSlices {
		delete(r.triggers, r.owner[name])
		r.dropSlice(name)
	}
	if u.LocalNode != nil {
		r.setLocalNode(*u.LocalNode)
	}
	if u.ServiceCIDRs != nil {
		r.cidrs, r.foreign, r.localNodeSet = u.ServiceCIDRs, u.ForeignIPs, true
	}
	spillsOver := len(r.spillOvers.asked) > 0
	r.spillOvers.set = r.spillOvers.set || spillsOver && (len(u.PutNodes)+len(u.DeleteNodes) > 0 || u.NodesListed)
	follow := r.nodes.matter() || spillsOver
	r.reportWaiting()
	r.mu.Unlock()
	if follow && r.opts.FollowNodes != nil {
		r.opts.FollowNodes()
	}
	r.signal()
}

// Synced lets the tables be completed. The age of what came in before counts from here:
// nothing could be done about it.
func (r *Reconciler) Synced() {
	r.mu.Lock()
	if !r.synced && !r.queued.IsZero() {
		r.queued = time.Now()
	}
	r.synced = true
	if r.opts.FollowNodes == nil {
		r.nodes.take(&source.Update{NodesListed: true})
		r.spillOvers.set = true
	}
	r.mu.Unlock()
	r.signal()
}

// SetLocalAddresses takes the addresses of the machine.
func (r *Reconciler) SetLocalAddresses(addrs []netip.Addr) {
	r.mu.Lock()
	r.local, r.localNodeSet = addrs, true
	r.reportWaiting()
	r.mu.Unlock()
	r.signal()
}

func (r *Reconciler) touch(name model.Name) {
	r.dirty[name] = struct{}{}
	if r.queued.IsZero() {
		r.queued = time.Now()
	}
}

func (r *Reconciler) putSlice(s *model.Slice) {
	name := s.ServiceName()
	if r.slices[name] == nil {
		r.slices[name] = make(map[string]*model.Slice, 1)
	}
	r.slices[name][s.Name.Name] = s
	r.owner[s.Name] = name
	r.touch(name)
}

func (r *Reconciler) dropSlice(slice model.Name) {
	name, ok := r.owner[slice]
	if !ok {
		return
	}
	delete(r.owner, slice)
	delete(r.slices[name], slice.Name)
	if len(r.slices[name]) == 0 {
		delete(r.slices, name)
	}
	r.touch(name)
}

// setLocalNode takes a source's update of the node. Its name is the agent's own.
func (r *Reconciler) setLocalNode(n model.LocalNode) {
	n.Name = r.localNode.Name
	n.Addrs = model.PreferAddrs(r.opts.LocalNode.Addrs, n.Addrs)
	if n.Zone != r.localNode.Zone {
		r.spillOvers.set = true
		for name := range r.services {
			r.touch(name)
		}
	}
	if !slices.Equal(n.Addrs, r.localNode.Addrs) {
		r.localNodeSet, r.nodes.set = true, true
	}
	r.localNode = n
}

func (r *Reconciler) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run applies changes until ctx ends. It returns an error only when the tables
// could not be put to work. The store is not used after it has returned.
func (r *Reconciler) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer r.stopReporting()
	defer r.barrier.Wait()
	defer cancel()
	defer r.startChecks()()
	defer r.startOutliers()()
	defer r.startRetries()()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-r.waited:
			r.release(err)
			r.retire(ctx)
			continue
		case <-r.check.due:
			r.checkSome()
			continue
		case <-r.outliers.due:
			r.outliers.timer.Reset(max(lookPeriod, lookShare*pause.Work(r.lookAtOutliers)))
			continue
		case <-r.wake:
			if !pause.For(ctx, r.opts.MinSyncPeriod-time.Since(last)) {
				return nil
			}
		}
		last = time.Now()
		if err := r.sync(ctx); err != nil {
			return err
		}
	}
}

// work is the input of one sync.
type work struct {
	names        map[model.Name]struct{}
	first        map[model.Name]struct{} // of these, those that leave room to others
	last         map[model.Name]struct{} // and those whose share alone has changed, if they are not among the first
	localNode    model.LocalNode
	local        []netip.Addr
	cidrs        []netip.Prefix
	foreign      []netip.Addr
	localNodeSet bool
	// nodes are the nodes of the cluster; nil when they are to stay as they are.
	nodes   []*model.Node
	udpLeft bool
	queued  time.Time
}

// take collects the changes since the last sync; false before the source is
// complete.
func (r *Reconciler) take() (work, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced {
		return work{}, false
	}
	r.takeDue()
	w := work{names: r.dirty, localNode: r.localNode, local: r.local, cidrs: r.cidrs, foreign: r.foreign, localNodeSet: r.localNodeSet, queued: r.queued}
	w.nodes = r.nodes.changed(&r.localNode)
	r.applying, r.syncing = r.queued, true
	w.udpLeft = r.udpLeft || !r.complete
	r.dirty, r.localNodeSet, r.queued, r.udpLeft = make(map[model.Name]struct{}), false, time.Time{}, false
	r.queue.Services, r.queue.Slices = 0, 0
	return w, true
}

// object returns a Service, nil when it is not served, and its slices in the
// order of their names.
func (r *Reconciler) object(name model.Name) (*model.Service, []*model.Slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	svc := r.services[name]
	if svc == nil {
		return nil, nil
	}
	list := slices.Collect(maps.Values(r.slices[name]))
	slices.SortFunc(list, func(a, b *model.Slice) int { return strings.Compare(a.Name.Name, b.Name.Name) })
	return svc, list
}

// sync applies the changes since the last sync; it does nothing before the source is complete.
func (r *Reconciler) sync(ctx context.Context) error {
	start := time.Now()
	w, ok := r.take()
	if !ok {
		return nil
	}
	s := result{Sync: Sync{Start: start}, full: make(map[string]bool), udpLeft: w.udpLeft}
	if w.localNodeSet {
		r.applyLocalNode(&w, &s)
	}
	r.share(&w)
	if !r.complete {
		if err := r.tables.Reserve(); err != nil {
			klog.ErrorS(err, "Tables could not be enlarged ahead, enlarging them step by step")
		}
	}
	r.applyNodes(&w, &s)
	r.apply(&w, &s)
	if !r.pruned {
		r.prune(&w, &s)
	}
	r.dropNodes(&w, &s)
	if !r.complete {
		if err := r.opts.Complete(ctx); err != nil {
			return err
		}
		r.complete = true
	}
	r.retire(ctx)
	r.setStuck()
	s.Duration, s.Pending = time.Since(start), r.pending()
	s.Stuck, s.Limited = !r.stuck.IsZero(), r.limited
	r.tell(&s)
	return nil
}

// prune removes entries of Services that do not exist any more.
func (r *Reconciler) prune(w *work, s *result) {
	affected, err := r.tables.Prune(r.exists)
	r.pruned = err == nil
	if r.outcome(task{part: partLeftovers}, err, time.Time{}) && err != nil {
		klog.ErrorS(brief(err), "Entries of former Services could not be removed, trying again")
	}
	w.names = set(affected)
	r.apply(w, s)
}

// applyLocalNode applies node addresses and Service CIDRs, which concern no Service.
func (r *Reconciler) applyLocalNode(w *work, s *result) {
	s.nodePorts = append([]netip.Addr{}, r.opts.NodePortAddresses.Select(w.local, &w.localNode)...)
	err := errors.Join(
		r.tables.SetServiceCIDRs(w.cidrs, w.foreign),
		r.tables.SetNodeAddrs(nodeAddrs(s.nodePorts, r.opts.NodePortAddresses), w.localNode.Addrs),
	)
	noteFull(err, s.full)
	if r.outcome(task{part: partLocalNode}, err, time.Time{}) && err != nil {
		klog.ErrorS(brief(err), "Node addresses or Service ranges are not complete, trying again")
	}
}

func set(names []model.Name) map[model.Name]struct{} {
	s := make(map[model.Name]struct{}, len(names))
	for _, n := range names {
		s[n] = struct{}{}
	}
	return s
}

func (r *Reconciler) exists(name model.Name) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.services[name] != nil
}

// apply brings the named Services into the tables, in order, and those that are affected by
// it after them.
func (r *Reconciler) apply(w *work, s *result) {
	for names := w.names; len(names) > 0; {
		next := make(map[model.Name]struct{})
		for some := range slices.Chunk(r.inOrder(w, names), ahead) {
			from, desired := r.desire(some, &w.localNode)
			for i, name := range some {
				affected, err := r.tables.Apply(desired[i])
				maps.Copy(next, set(affected))
				r.applied(name, err, w.queued, s.full)
				if err == nil || ownFault(err) {
					r.report(s, name, from[i].svc, from[i].slices, &desired[i], &w.localNode)
				}
				s.Services++
			}
		}
		names = next
	}
}

// applied records the outcome of a Service, and logs it when it is new. queued is when the
// change came in.
func (r *Reconciler) applied(name model.Name, err error, queued time.Time, full map[string]bool) {
	noteFull(err, full)
	if !r.outcome(task{service: name}, err, queued) {
		return
	}
	if err == nil {
		klog.InfoS("Service is served in full", "service", name)
		return
	}
	klog.ErrorS(brief(err), "Service is not served in full, trying again", "service", name)
}

// noteFull adds the tables that err says are full.
func noteFull(err error, full map[string]bool) {
	switch e := err.(type) {
	case *tables.FullError:
		full[e.Table] = true
	case interface{ Unwrap() error }:
		noteFull(e.Unwrap(), full)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			noteFull(err, full)
		}
	}
}

// retire waits, beside the loop, until ids and slots that were taken out of the tables can be
// reused. After a failure it does so when that is due.
func (r *Reconciler) retire(ctx context.Context) {
	if _, failed := r.failed[task{part: partRetired}]; r.retiring || failed && !r.retiredDue {
		return
	}
	if r.retired.Empty() {
		r.retired = r.tables.Retire()
	}
	if r.retired.Empty() {
		return
	}
	r.retiring, r.retiredDue = true, false
	r.barrier.Go(func() {
		if pause.For(ctx, retireDelay) {
			r.waited <- r.store.Barrier()
		}
	})
}

// release records the outcome of the wait, and has ids and slots reused.
func (r *Reconciler) release(err error) {
	r.retiring = false
	if changed := r.outcome(task{part: partRetired}, err, time.Time{}); changed && err != nil {
		klog.ErrorS(err, "Waiting for running programs failed, trying again")
	} else if changed {
		r.signal() // for a sync that tells so
	}
	if err == nil {
		r.tables.Release(r.retired)
		r.retired = tables.Retired{}
	}
}

// nodeAddrs returns the entries of the addresses on which NodePorts answer. Loopback
// is the node only to the node's own processes; so is the any-address, which connect()
// takes for it.
func nodeAddrs(selected []netip.Addr, policy policy.NodePortAddresses) map[netip.Addr]tables.NodeAddr {
	addrs := make(map[netip.Addr]tables.NodeAddr)
	for _, a := range selected {
		addrs[a] = tables.NodeAddr{HostOnly: a.IsLoopback()}
	}
	for family, list := range map[model.Family][]netip.Addr{
		model.IPv4: {netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv4Unspecified()},
		model.IPv6: {netip.IPv6Loopback(), netip.IPv6Unspecified()},
	} {
		if !policy.Loopback(family) {
			continue
		}
		for _, a := range list {
			addrs[a] = tables.NodeAddr{HostOnly: true}
		}
	}
	return addrs
}
