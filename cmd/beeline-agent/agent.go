package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/demand"
	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/health"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/setup"
	"github.com/beeline-lb/beeline/pkg/socket"
	"github.com/beeline-lb/beeline/pkg/source/host"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/termination"
	"github.com/beeline-lb/beeline/pkg/tunnel"
	"github.com/beeline-lb/beeline/pkg/verify"
	"github.com/beeline-lb/beeline/pkg/version"
)

// agent is the process that serves a node. Its stages are prepare, connect, run and close; the fields
// stand in the order in which they are set.
type agent struct {
	config   *config.Settings
	started  time.Time
	registry *prometheus.Registry

	// By prepare.
	cgroup          string
	datapath        *datapath.Datapath
	secrets         tunnel.Secrets
	destroysSockets bool
	// eventsMade: a former agent has found wrong what this one will, and made the events about it.
	eventsMade bool
	// memoryShort: it has been told that the memory limit is too small.
	memoryShort atomic.Bool

	// By connect.
	attached    chan struct{} // closed when the programs are at work
	prober      *tunnel.Prober
	demand      *demand.Exchange
	destroyer   *socket.Destroyer
	udpLeft     chan struct{} // of room 1, see wakeUDP
	terminating *termination.Watcher
	findings    *metrics.Verify
	healthy     *health.State
	checks      *health.Services
	reconciler  *reconcile.Reconciler
	node        *nodeSink
	source      setup.Services
	flows       *flow.Expirer
	pages       *health.Listener
}

// serve runs the agent until ctx ends.
func serve(ctx context.Context, c *config.Settings) error {
	a := &agent{config: c, started: time.Now(), registry: prometheus.NewRegistry()}
	return errors.Join(inOrder(ctx, a.prepare, a.connect, a.run), a.close())
}

// inOrder runs the stages of the agent, up to the first that fails.
func inOrder(ctx context.Context, stages ...part) error {
	for _, stage := range stages {
		if err := stage(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepare opens the maps and loads the programs, which are not attached yet.
func (a *agent) prepare(ctx context.Context) (err error) {
	c := a.config
	tuneHost(c)
	if a.cgroup, err = mountPlaces(&c.Beeline); err != nil {
		return err
	}
	klog.InfoS("Opening maps and loading programs", "version", version.String(), "pins", datapath.Dir(c.Beeline.BPFFS))
	if a.datapath, err = datapath.Prepare(ctx, setup.Datapath(c, a.cgroup)); errors.Is(err, bpfmap.ErrOtherVersion) {
		return fmt.Errorf("%w: start the agent of that version, or run this one with --cleanup, which ends known flows", err)
	} else if err != nil {
		return err
	}
	klog.InfoS("Programs are loaded, they are attached when the tables hold all Services", "after", a.age())
	if !datapath.MayReadKernel() {
		klog.InfoS("The kernel's lockdown keeps programs from reading its memory: loadBalancerSourceRanges let in bound sockets alone, sh and ewma know nothing of a socket's client and round-trip time, sockets of meshes are served like others")
	}
	maps := a.datapath.Maps()
	klog.InfoS("Flow table", "connections", maps.MaxFlows(), "sizedBy", c.SizedBy)
	if err := a.limitHeap(); err != nil {
		return err
	}
	if a.secrets, err = tunnel.ReadSecrets(c.Beeline.DSRSecretFile); err != nil {
		return err
	}
	if a.secrets == nil && mayTunnel(c) {
		klog.InfoS("Tunnel traffic is accepted from any sender with a node's address, set --dsr-secret-file")
	}
	status := statusmap.New(maps)
	former := status.Agent()
	if otherSent, _ := setMarks(maps, a.secrets); otherSent || former.TunnelPort != c.TunnelPort {
		nodemap.New(maps).ForgetAnswers()
	}
	nodemap.New(maps).FindSelf()
	a.destroysSockets = canDestroySockets()
	status.SetAgent(describe(c, a.cgroup, a.started, a.destroysSockets))
	status.SetAsksConntrack(a.datapath.AsksConntrack())
	sameConfig, err := noteConfig(status, c)
	a.eventsMade = sameConfig && former.Version == version.String() && !former.EventsWait
	return err
}

// connect makes the parts of the agent and wires them.
func (a *agent) connect(context.Context) (err error) {
	c, maps := a.config, a.datapath.Maps()
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	backends := metrics.NewBackends(maps, int(c.Beeline.ServiceMetrics.Backends))
	a.registry.MustRegister(metrics.NewDatapath(maps), metrics.NewDevices(a.datapath.DeviceCounts),
		metrics.NewServices(maps, int(c.Beeline.ServiceMetrics.Limit), c.MetricServices, backends))
	metrics.NewConfig(a.registry).Observe(c.Config)
	client := metrics.NewClient(a.registry)
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestLatency: client, RequestResult: client})
	a.findings = metrics.NewVerify(a.registry, verify.MachineKinds)
	a.attached = make(chan struct{})
	a.udpLeft = make(chan struct{}, 1)
	a.prober = newProber(c, maps, a.secrets)
	a.demand = demand.New(demand.Options{
		Port:  c.SpillOverPort,
		Count: flowmap.New(maps).ActiveOf,
		Told:  func(known map[model.Name]demand.Zones) { a.reconciler.SetDemand(known) },
	})
	a.destroyer = socket.New(socket.Options{
		Service:   a.datapath.UDPService,
		Serves:    a.serves,
		Destroyed: metrics.NewSockets(a.registry).Observe,
	})
	a.terminating = termination.New(termination.Options{
		Ready: a.attached,
		Known: func(service model.Name) bool { return a.reconciler.Knows(service) },
		Count: socket.Connections,
	})
	a.registry.MustRegister(metrics.NewTermination(a.terminating.Endpoints, int(c.Beeline.ServiceMetrics.Backends)))
	a.healthy = health.New(health.Options{
		Oldest:      func() time.Time { return a.reconciler.Oldest() },
		Timeout:     2 * c.SyncPeriod,
		WithoutNode: c.Beeline.Manifests != "",
		Answered:    metrics.NewHealth(a.registry).Answered,
	})
	a.checks = health.NewServices(health.ServicesOptions{
		NodeName: c.NodeName, NodePorts: c.NodePorts, Healthy: a.healthy.Healthy, Record: a.record,
		Reported: a.eventsMade,
	})
	if err := a.connectReconciler(); err != nil {
		return err
	}
	a.node = &nodeSink{
		Sink: a.reconciler, given: c.NodeAddrs,
		setNode: a.healthy.SetNode, setAddrs: a.datapath.SetNodeAddrs,
	}
	if c.KubeProxy.DetectLocalMode == config.LocalModeNodeCIDR {
		a.node.setPodRanges = a.datapath.SetOwnPods
	}
	if a.source, err = setup.Source(c, a.node, statusmap.New(maps).SetEventsWait); err != nil {
		return err
	}
	a.flows = a.newFlows(backends)
	a.pages = metricsPages(c, a.registry, a.record)
	return nil
}

// newFlows makes what removes idle flows.
func (a *agent) newFlows(backends *metrics.Backends) *flow.Expirer {
	maps := a.datapath.Maps()
	flows := metrics.NewFlows(a.registry, maps.MaxFlows())
	departed := &flow.Departed{Tell: func(f *flowmap.Flow, flows int) { a.tell(f.Left(flows)) }}
	return flow.New(flow.Options{
		Maps:     maps,
		Timeouts: a.config.Timeouts,
		Left:     func(f *flowmap.Flow) { backends.Count(f); departed.Count(f) },
		Walked: func(w flow.Walk) {
			flows.Observe(w)
			backends.Walked(w)
			departed.Walked(w)
			if w.EvictedEstablished > 0 {
				a.tell(flowmap.Evicted(w.EvictedEstablished))
			}
		},
		Expired: func(f *flowmap.Flow) { a.tell(f.Expired()) },
		NoneMasqueraded: func(ctx context.Context, since time.Time) {
			if err := a.datapath.EndMasquerade(ctx, since); err != nil {
				klog.ErrorS(err, "Programs that masqueraded flows needed are not all removed from devices")
			}
		},
	})
}

// tell tells who listens to events what the agent has found.
func (a *agent) tell(found bpf.SockBlFound) {
	if err := a.datapath.Tell(found); err != nil {
		klog.V(2).ErrorS(err, "Who listens to events is not told what the agent has found")
	}
}

// connectReconciler makes the control loop, which begins with the content of the tables.
func (a *agent) connectReconciler() error {
	c, maps := a.config, a.datapath.Maps()
	services := a.datapath.Services()
	have, err := services.Snapshot()
	if err != nil {
		return err
	}
	if err := statusmap.New(maps).ForgetUnapplied(); err != nil {
		return err
	}
	entries := tables.Restore(services, have)
	entries.SetBounds(c.Bounds)
	o := setup.Reconcile(c)
	o.Faults = reportFaults(metrics.NewFaults(a.registry), a.record, a.reported)
	o.Failed = a.failed
	o.Complete = a.attach
	o.Waiting = statusmap.New(maps).SetWaiting
	o.CheckPeriod = checkPeriod
	o.Checked = a.checked
	o.Metrics = metrics.NewSync(a.registry)
	o.Ejects, o.Ejected = c.MayEject(), metrics.NewOutliers(a.registry).Observe
	report := reportEjections(a.record)
	o.Ejection = func(e reconcile.Ejection) {
		report(e)
		a.tell(flowmap.Ejected(e.BackendID, e.Generation, e.Endpoint, e.Failures, e.Pause))
	}
	o.HealthChecks = a.checks.Update
	o.PodRanges = a.datapath.SetPodsOfNodes
	o.Nodes = a.prober.SetNodes
	o.SpillOvers = a.demand.Set
	o.UDPLeft = a.wakeUDP
	o.Terminating = a.terminating.Set
	o.Synced = a.synced
	if c.Beeline.Manifests == "" {
		o.FollowNodes = func() { a.source.FollowNodes() }
	}
	a.reconciler = reconcile.New(entries, services, o)
	a.registry.MustRegister(metrics.NewQueue(a.reconciler.Queue))
	metrics.RegisterSpillOver(a.registry, a.reconciler.SpillingOver, a.demand.Silent)
	if addrs, err := host.Addresses(); err == nil {
		a.reconciler.SetLocalAddresses(addrs)
	}
	return nil
}

// attach puts the programs to work, now that the tables hold all Services.
func (a *agent) attach(ctx context.Context) error {
	klog.InfoS("All Services are in the tables, attaching the programs", "after", a.age())
	if err := a.datapath.Attach(ctx); err != nil {
		return err
	}
	c := a.config
	klog.InfoS("Serving", "version", version.String(), "node", c.NodeName, "cgroup", a.cgroup,
		"pins", datapath.Dir(c.Beeline.BPFFS), "after", a.age())
	close(a.attached)
	return a.limitHeap() // the tables have grown
}

// synced shows a sync in beeline status, the health pages and the log.
func (a *agent) synced(s reconcile.Sync) {
	status := statusmap.New(a.datapath.Maps())
	status.SetSynced(s.Start.Add(s.Duration), s.Pending)
	if err := status.SetLimited(s.Limited); err != nil {
		klog.ErrorS(err, "Status does not show how many Services get less than they ask for")
	}
	a.healthy.Synced(s.Stuck)
	if s.Services > 0 {
		klog.V(4).InfoS("Synced", "services", s.Services, "took", s.Duration, "pending", s.Pending)
	}
}

// failed shows a Service that could not be applied in full; nil: it is applied.
func (a *agent) failed(service model.Name, f *reconcile.Failure) {
	var err error
	if status := statusmap.New(a.datapath.Maps()); f == nil {
		err = status.DeleteUnapplied(service)
	} else {
		err = status.PutUnapplied(statusmap.Unapplied{
			Service: service, Error: f.Error, Since: f.Since, Next: f.Next, Tries: uint32(f.Tries),
		})
	}
	if err != nil {
		klog.ErrorS(err, "The command does not show why a Service is not served in full", "service", service)
	}
}

// serves reports whether an endpoint serves the Service of an id.
func (a *agent) serves(service uint32, endpoint netip.AddrPort) bool {
	name, ok := a.datapath.Services().ServiceName(service)
	return ok && a.reconciler.Serves(name.ServicePortName(), endpoint)
}

// reported says whether a former agent has made events about what is found wrong now.
func (a *agent) reported() bool {
	select {
	case <-a.attached:
		return false
	default:
		return a.eventsMade
	}
}

// record makes an event, once the source is known.
func (a *agent) record(e event.Event) { a.source.Record(e) }

// age returns how long ago the agent began.
func (a *agent) age() time.Duration { return time.Since(a.started).Round(time.Millisecond) }

// run runs all parts until ctx ends or one of them fails.
func (a *agent) run(ctx context.Context) error {
	maps := a.datapath.Maps()
	parts := []part{
		a.reconciler.Run,
		a.source.Run,
		healthPages(a.config, a.healthy, a.terminating, a.record).Run,
		a.pages.Run,
		func(ctx context.Context) error { return webPage(ctx, a.config, a.record) },
		endless(func(ctx context.Context) { host.Watch(ctx, a.reconciler.SetLocalAddresses) }),
		endless(func(ctx context.Context) { a.datapath.FollowDevices(ctx) }),
		endless(func(ctx context.Context) { a.datapath.FollowNAT(ctx) }),
		endless(func(ctx context.Context) { a.datapath.FollowSandboxes(ctx) }),
		func(ctx context.Context) error { return a.datapath.FollowPrograms(ctx, a.findings.Programs) },
		endless(a.flows.Run),
		endless(a.tuneConntrack),
		endless(func(ctx context.Context) { conntrack.ThisHost.Follow(ctx, flowmap.New(maps).SetTracking) }),
		endless(func(ctx context.Context) { host.FollowRules(ctx, flowmap.New(maps).SetRulesByClient) }),
		endless(a.followSourcePorts),
		endless(a.afterAttached(a.endStale)),
		endless(a.checks.Run),
		endless(a.terminating.Run),
		endless(a.afterAttached(a.demand.Run)),
		endless(a.afterAttached(a.checkMachine)),
		endless(a.afterAttached(a.followHeap)),
		endless(func(ctx context.Context) { kubeproxy.Follow(ctx, a.config.AcceptForwarded) }),
	}
	if a.config.TunnelPort != 0 {
		parts = append(parts, endless(a.afterAttached(a.prober.Run)), endless(a.followSecrets))
	}
	if a.destroysSockets {
		parts = append(parts, endless(a.destroyer.Run))
	}
	a.record(event.Event{Type: event.Normal, Reason: event.Starting, Action: "Start", Note: "beeline-agent " + version.String()})
	return run(ctx, parts)
}

// afterAttached returns run for once the programs are at work.
func (a *agent) afterAttached(run func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-a.attached:
			run(ctx)
		}
	}
}

// followSourcePorts has SNAT avoid the ports of the node that its settings name.
func (a *agent) followSourcePorts(ctx context.Context) {
	maps := a.datapath.Maps()
	host.FollowSourcePorts(ctx, maps.SourcePorts, func(ports bpfmap.SourcePorts, again bool) {
		maps.SetSourcePorts(ports)
		if again {
			a.mended("the node's own source ports")
		}
	})
}

// followSecrets follows the file of secrets, if there is one.
func (a *agent) followSecrets(ctx context.Context) {
	tunnel.FollowSecrets(ctx, a.config.Beeline.DSRSecretFile, a.secrets, func(s tunnel.Secrets, others bool) {
		if others {
			a.prober.SetSecrets(s)
		}
		if _, changed := setMarks(a.datapath.Maps(), s); changed && !others {
			a.mended("the marks of tunnel traffic")
		}
	})
}

// close unmaps the tables, unless a page that is still being made reads them. The programs go
// on.
func (a *agent) close() error {
	if a.datapath == nil || a.pages != nil && !a.pages.Idle() {
		return nil
	}
	return a.datapath.Close()
}

// part is a stage of the agent, or a part of the last one, which runs until ctx ends. An error ends
// the agent.
type part func(ctx context.Context) error

// endless returns the part that cannot fail.
func endless(run func(context.Context)) part {
	return func(ctx context.Context) error {
		run(ctx)
		return nil
	}
}

// run runs the parts of the agent until ctx ends or one of them fails.
func run(ctx context.Context, parts []part) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, p := range parts {
		running.Go(func() {
			if err := p(ctx); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
