package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/socket"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/host"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// NodeName is the name of a host's node.
const NodeName = "node-1"

// Sizes are those of an agent's tables unless a test asks for others. To make a large LRU
// table takes the kernel longer than most tests take.
var Sizes = func() bpfmap.Sizes {
	sizes := bpfmap.DefaultSizes
	sizes.Flows, sizes.Clients, sizes.Affinity, sizes.UDPPeers = 1<<14, 1<<12, 1<<12, 1<<12
	return sizes
}()

// AgentOptions are the flags of an agent in the test process.
type AgentOptions struct {
	NodePortAddresses []string
	ServiceRanges     []string
	Devices           []string // that packets are served on; none unless given
	PodDevices        []string // those of pods, whose sockets are left alone then
	XDP               datapath.XDPMode
	LocalityIdle      time.Duration // see [datapath.Options]
	Outliers          model.Outliers
	Sizes             bpfmap.Sizes // of the tables; [Sizes] unless given
	Manifests         []string     // of what is there when the agent starts
}

// Agent are the parts of beeline-agent in the test process: it takes manifests from
// the test and tells when they are served.
type Agent struct {
	t          testing.TB
	datapath   *datapath.Datapath
	reconciler *reconcile.Reconciler
	stop       func()
	destroyer  *socket.Destroyer

	mu      sync.Mutex
	changed *sync.Cond
	last    reconcile.Sync
	ended   error
}

// Serve starts an agent for the host. It ends with the test, unless it is stopped before.
func (h *Host) Serve(opts AgentOptions) *Agent {
	h.t.Helper()
	a := &Agent{t: h.t}
	a.changed = sync.NewCond(&a.mu)
	h.must("prepare the datapath", func() (err error) {
		a.datapath, err = datapath.Prepare(h.t.Context(), datapath.Options{
			BPFFS: h.BPFFS, Cgroup: h.Cgroup, Sizes: cmp.Or(opts.Sizes, Sizes), Devices: opts.Devices, XDP: opts.XDP, LocalityIdle: cmp.Or(opts.LocalityIdle, time.Hour),
			PodDevices: opts.PodDevices, HostSocketsOnly: len(opts.PodDevices) > 0, Outliers: opts.Outliers.Used(),
		})
		return err
	})
	a.stop = sync.OnceFunc(func() {
		if err := a.datapath.Close(); err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(a.Stop)
	a.destroyer = socket.New(socket.Options{Service: a.datapath.UDPService, Serves: a.serves})
	options, err := a.options(opts)
	if err != nil {
		h.t.Fatal(err)
	}
	services := a.datapath.Services()
	have, err := services.Snapshot()
	if err != nil {
		h.t.Fatal(err)
	}
	a.reconciler = reconcile.New(tables.Restore(services, have), services, options)
	h.must("list the host's addresses", func() error {
		addrs, err := host.Addresses()
		a.reconciler.SetLocalAddresses(addrs)
		return err
	})
	var cidrs []netip.Prefix
	for _, r := range opts.ServiceRanges {
		cidrs = append(cidrs, netip.MustParsePrefix(r))
	}
	there, err := update(opts.Manifests)
	if err != nil {
		h.t.Fatal(err)
	}
	there.ServiceCIDRs = cidrs
	a.reconciler.Apply(there)
	a.run(h)
	a.Apply()
	return a
}

func (a *Agent) options(opts AgentOptions) (reconcile.Options, error) {
	ports, err := policy.ParseNodePortAddresses(opts.NodePortAddresses)
	if err != nil {
		return reconcile.Options{}, err
	}
	return reconcile.Options{
		LocalNode:         model.LocalNode{Name: NodeName, Addrs: []netip.Addr{Node4, Node6}},
		NodePortAddresses: ports,
		Outliers:          opts.Outliers,
		Ejects:            true,
		Complete:          a.datapath.Attach,
		UDPLeft:           a.destroyer.Wake,
		Synced:            a.synced,
	}, nil
}

// run starts the parts of the agent, among them the one that follows the host's
// addresses.
func (a *Agent) run(h *Host) {
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() {
		err := h.Thread(func() error {
			host.Watch(ctx, a.reconciler.SetLocalAddresses)
			return nil
		})
		if err != nil {
			a.end(err)
		}
	})
	parts.Go(func() { a.destroyer.Run(ctx) })
	parts.Go(func() {
		if err := a.reconciler.Run(ctx); err != nil {
			a.end(err)
		}
	})
	closed := a.stop
	a.stop = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
		closed()
	})
	a.reconciler.Synced()
}

// Stop ends the agent. What it has pinned goes on.
func (a *Agent) Stop() { a.stop() }

// SyncDevices attaches to the devices as they are now.
func (a *Agent) SyncDevices() error { return a.datapath.SyncDevices(a.t.Context()) }

// Maps returns the maps in the kernel.
func (a *Agent) Maps() *bpfmap.Maps { return a.datapath.Maps() }

// Services returns the Services in the maps.
func (a *Agent) Services() servicemap.Table { return a.datapath.Services().Table }

// Sink returns the agent's sink, for a source.
func (a *Agent) Sink() source.Sink { return a.reconciler }

// serves reports whether an endpoint serves the Service of an id.
func (a *Agent) serves(service uint32, endpoint netip.AddrPort) bool {
	name, ok := a.Services().ServiceName(service)
	return ok && a.reconciler.Serves(name.ServicePortName(), endpoint)
}

func (a *Agent) synced(s reconcile.Sync) {
	a.mu.Lock()
	a.last = s
	a.mu.Unlock()
	a.changed.Broadcast()
}

// DestroySockets destroys UDP sockets whose endpoint is gone at once, in place of soon, and
// returns how many those are.
func (a *Agent) DestroySockets() int {
	a.t.Helper()
	destroyed, err := a.destroyer.Search()
	if err != nil {
		a.t.Error(err)
	}
	return destroyed
}

func (a *Agent) end(err error) {
	a.mu.Lock()
	a.ended = err
	a.mu.Unlock()
	a.changed.Broadcast()
}

// Apply adds or replaces objects and returns when they are served in full. Those
// that are not to be served at all are left out.
func (a *Agent) Apply(manifests ...string) {
	a.t.Helper()
	u, err := update(manifests)
	if err != nil {
		a.t.Fatal(err)
	}
	a.Update(u)
}

// DeleteService deletes Services of the namespace "default".
func (a *Agent) DeleteService(names ...string) {
	a.t.Helper()
	var u source.Update
	for _, name := range names {
		u.DeleteServices = append(u.DeleteServices, model.Name{Namespace: "default", Name: name})
	}
	a.Update(u)
}

// Update hands changes over and returns when they are served in full.
func (a *Agent) Update(u source.Update) {
	a.t.Helper()
	start := time.Now()
	a.reconciler.Apply(u)
	if err := a.wait(start); err != nil {
		a.t.Fatal(err)
	}
}

// wait returns after a sync that began after start.
func (a *Agent) wait(start time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.ended == nil && !a.last.Start.After(start) {
		a.changed.Wait()
	}
	if a.ended == nil && a.last.Pending > 0 {
		return fmt.Errorf("%d Services are not served in full", a.last.Pending)
	}
	return a.ended
}
