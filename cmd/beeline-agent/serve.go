package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/health"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/socket"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/file"
	"github.com/beeline-lb/beeline/pkg/source/host"
	"github.com/beeline-lb/beeline/pkg/source/kube"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tunnel"
	"github.com/beeline-lb/beeline/pkg/version"
)

// serve runs the agent until ctx ends.
func serve(ctx context.Context, c *config.Settings) error {
	started := time.Now()
	tuneHost(c)
	cgroup, err := mountPlaces(&c.Beeline)
	if err != nil {
		return err
	}
	klog.InfoS("Opening maps and loading programs", "version", version.String(), "pins", datapath.Dir(c.Beeline.BPFFS))
	d, err := datapath.Prepare(ctx, datapathOptions(c, cgroup))
	if err != nil {
		return err
	}
	klog.InfoS("Programs are loaded, they are attached when the tables hold all Services", "after", time.Since(started).Round(time.Millisecond))
	have, err := d.Maps().Snapshot()
	if err != nil {
		return errors.Join(err, d.Close())
	}
	klog.InfoS("Flow table", "connections", d.Maps().MaxFlows(), "sizedBy", c.SizedBy)
	if err := limitHeap(c.MemoryLimit, d.Maps()); err != nil {
		return errors.Join(err, d.Close())
	}
	secrets, err := tunnel.ReadSecrets(c.Beeline.DSRSecretFile)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	if secrets == nil && mayTunnel(c) {
		klog.InfoS("Packets of the tunnel are taken from whoever can send with a node's address, set --dsr-secret-file")
	}
	if setMarks(d.Maps(), secrets) || d.Maps().Agent().TunnelPort != c.TunnelPort {
		d.Maps().ForgetAnswers()
	}
	endsSockets := canEndSockets()
	sameVersion := d.Maps().Agent().Version == version.String()
	d.Maps().SetAgent(describe(c, cgroup, started, endsSockets))
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(metrics.NewDatapath(d.Maps()), metrics.NewDevices(d.DeviceCounts))
	metrics.NewConfig(registry).Observe(c.Config)
	syncs := metrics.NewSync(registry)

	var healthy *health.State
	var checks *health.Services
	record := event.Recorder(event.Discard)
	attached := make(chan struct{})
	// A former agent has told of what is wrong when this one begins.
	known := func() bool {
		select {
		case <-attached:
			return false
		default:
			return sameVersion
		}
	}
	prober := newProber(c, d.Maps(), secrets)
	var src runner
	var ender *socket.Destroyer
	entries := tables.Restore(d.Maps(), have)
	entries.SetBounds(c.Bounds)
	r := reconcile.New(entries, d.Maps(), reconcile.Options{
		Node:              model.Node{Name: c.NodeName, Addrs: c.NodeAddrs},
		NodePortAddresses: c.NodePorts,
		MinSyncPeriod:     c.MinSyncPeriod,
		Algorithm:         c.Algorithm,
		Forwarding:        c.Forwarding,
		ForwardingRefused: forwardingRefused(c),
		NoTunnel:          c.TunnelPort == 0,
		FollowPeers:       followPeers(c, &src),
		Faults:            tellFaults(metrics.NewFaults(registry), &record, known),
		Complete: func(ctx context.Context) error {
			if err := d.Attach(ctx); err != nil {
				return err
			}
			klog.InfoS("Serving", "version", version.String(), "node", c.NodeName, "cgroup", cgroup,
				"pins", datapath.Dir(c.Beeline.BPFFS), "after", time.Since(started).Round(time.Millisecond))
			close(attached)
			return limitHeap(c.MemoryLimit, d.Maps()) // the tables have grown
		},
		Synced: func(s reconcile.Sync) {
			syncs.Observe(s)
			d.Maps().SetSynced(s.Start.Add(s.Duration), s.Pending)
			if err := d.Maps().SetShort(s.Short); err != nil {
				klog.ErrorS(err, "Status does not tell how many Services get less than they ask for")
			}
			healthy.Update(s)
			checks.Update(s)
			if s.Peers != nil {
				prober.SetPeers(s.Peers)
			}
			if s.UDPLeft {
				ender.Wake()
			}
			if s.Services > 0 {
				klog.V(4).InfoS("Synced", "services", s.Services, "took", s.Duration, "pending", s.Pending)
			}
		},
	})
	ender = newEnder(d, r, metrics.NewSockets(registry))
	registry.MustRegister(metrics.NewQueue(r.Queue))
	healthy = health.New(health.Options{
		Oldest:      r.Oldest,
		Timeout:     2 * c.SyncPeriod,
		WithoutNode: c.Beeline.Manifests != "",
		Answered:    metrics.NewHealth(registry).Answered,
	})
	node := &nodeSink{
		Sink: r, given: c.NodeAddrs,
		setNode: healthy.SetNode, setAddrs: d.SetNodeAddrs, changed: make(chan struct{}, 1),
	}
	if c.KubeProxy.DetectLocalMode == config.LocalModeNodeCIDR {
		node.setPodRanges = d.SetInternalCIDRs
	}
	src, record, err = newSource(c, node)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	checks = health.NewServices(health.ServicesOptions{
		NodeName: c.NodeName, NodePorts: c.NodePorts, Healthy: healthy.Healthy, Record: record,
	})
	if addrs, err := host.Addresses(); err == nil {
		r.SetLocalAddresses(addrs)
	}
	flows := flow.New(flow.Options{
		Maps:     d.Maps(),
		Timeouts: c.Timeouts,
		Walked:   metrics.NewFlows(registry, d.Maps().MaxFlows()).Observe,
	})
	pages := metricsPages(c, registry, record)
	parts := []part{
		r.Run,
		src.Run,
		healthPages(c, healthy, record).Run,
		pages.Run,
		endless(func(ctx context.Context) { host.Watch(ctx, r.SetLocalAddresses) }),
		endless(func(ctx context.Context) { d.FollowDevices(ctx, node.changed) }),
		endless(flows.Run),
		endless(func(ctx context.Context) { conntrack.ThisHost.Follow(ctx, d.Maps().SetTracking) }),
		endless(func(ctx context.Context) { host.FollowSourcePorts(ctx, d.Maps().SetSourcePorts) }),
		endless(func(ctx context.Context) { probe(ctx, c, prober, attached) }),
		endless(func(ctx context.Context) { followSecrets(ctx, c, d.Maps(), prober, secrets) }),
		endless(checks.Run),
		endless(func(ctx context.Context) { kubeproxy.Follow(ctx, c.AcceptForwarded) }),
	}
	if endsSockets {
		parts = append(parts, endless(ender.Run))
	}
	record(event.Event{Type: event.Normal, Reason: event.Starting, Action: "Start", Note: "beeline-agent " + version.String()})
	err = run(ctx, parts)
	if !pages.Idle() {
		return err // a page that is still being made reads the maps
	}
	return errors.Join(err, d.Close())
}

// datapathOptions returns where the datapath goes.
func datapathOptions(c *config.Settings, cgroup string) datapath.Options {
	var mark uint32
	if c.AcceptForwarded {
		mark = kubeproxy.ForwardMark
	}
	return datapath.Options{
		ForwardMark:     mark,
		BPFFS:           c.Beeline.BPFFS,
		Cgroup:          cgroup,
		Sizes:           c.Sizes,
		Devices:         c.Beeline.Devices,
		PodDevices:      c.Beeline.PodDevices,
		HostSocketsOnly: c.Beeline.SocketLB == config.SocketLBHost,
		TC:              datapath.TCMode(c.Beeline.TCMode),
		XDP:             datapath.XDPMode(c.Beeline.XDP),
		NodeAddrs:       c.NodeAddrs,
		ClusterCIDRs:    c.PodRanges,
		NodePorts:       c.NodePorts.CIDRs,
		Internal:        c.Internal,
		MasqueradeAll:   c.MasqueradeAll,
		SNATPortMin:     c.SNATPortMin,
		SNATPortMax:     c.SNATPortMax,
		TunnelPort:      c.TunnelPort,
		TunnelClamp:     *c.Beeline.DSRClampMSS,
	}
}

// newProber returns what finds out which nodes accept tunnel traffic.
func newProber(c *config.Settings, m *bpfmap.Maps, secrets tunnel.Secrets) *tunnel.Prober {
	return tunnel.New(tunnel.Options{
		Secrets: secrets,
		Port:    c.TunnelPort,
		Nodes:   m,
		Accepts: func(ifindex int) bool {
			serves, err := m.ServesDevice(ifindex)
			return err == nil && serves
		},
	})
}

// mayTunnel reports whether packets may go in a tunnel.
func mayTunnel(c *config.Settings) bool {
	asked := c.Forwarding.Tunnels() || slices.Contains(c.Beeline.AllowedAnnotations, model.AnnotationForwarding)
	return asked && c.TunnelPort != 0 && !c.MasqueradeAll
}

// setMarks lets packets of the tunnel have the marks of secrets. It reports whether they are
// sent with another one than before.
func setMarks(m *bpfmap.Maps, secrets tunnel.Secrets) bool {
	sent, accepted := secrets.Marks()
	return m.SetMarks(sent, accepted...)
}

// followSecrets follows the file of secrets, if there is one.
func followSecrets(ctx context.Context, c *config.Settings, m *bpfmap.Maps, prober *tunnel.Prober, known tunnel.Secrets) {
	if c.TunnelPort == 0 || known == nil {
		return
	}
	tunnel.FollowSecrets(ctx, c.Beeline.DSRSecretFile, known, func(s tunnel.Secrets) {
		prober.SetSecrets(s)
		setMarks(m, s)
	})
}

// probe asks other nodes, and answers them, once the programs are at work.
func probe(ctx context.Context, c *config.Settings, prober *tunnel.Prober, attached <-chan struct{}) {
	if c.TunnelPort == 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-attached:
		prober.Run(ctx)
	}
}

// newEnder returns what ends UDP sockets whose endpoint is gone.
func newEnder(d *datapath.Datapath, r *reconcile.Reconciler, ended *metrics.Sockets) *socket.Destroyer {
	return socket.New(socket.Options{
		Service: d.UDPService,
		Serves: func(service uint32, endpoint netip.AddrPort) bool {
			name, ok := d.Maps().ServiceName(service)
			return ok && r.Serves(name.ServicePortName(), endpoint)
		},
		Destroyed: ended.Observe,
	})
}

// canEndSockets reports whether the kernel ends UDP sockets, and logs why it does not.
func canEndSockets() bool {
	err := socket.Supported()
	if err != nil {
		klog.ErrorS(err, "Connected UDP sockets keep endpoints that are gone")
	}
	return err == nil
}

// forwardingRefused returns why packets cannot go in a tunnel, or "".
func forwardingRefused(c *config.Settings) string {
	if c.MasqueradeAll {
		return config.MasqueradesAll
	}
	return ""
}

// followPeers returns what makes a source tell of all nodes of the cluster; nil for one that
// does anyway. src is set when the source begins.
func followPeers(c *config.Settings, src *runner) func() {
	if c.Beeline.Manifests != "" {
		return nil
	}
	return func() { (*src).(*kube.Source).FollowPeers() }
}

// nodeSink is a sink that tells of the Node object.
type nodeSink struct {
	source.Sink
	given   []netip.Addr // go before the Node's
	setNode func(*model.Node)
	// nil: they do not matter
	setAddrs     func([]netip.Addr)
	setPodRanges func([]netip.Prefix)
	changed      chan struct{} // of room 1
}

// Apply hands the update on.
func (s *nodeSink) Apply(u source.Update) {
	if u.NodeGone {
		s.setNode(nil)
	}
	if u.Node != nil {
		s.setNode(u.Node)
		if s.setAddrs != nil {
			s.setAddrs(model.PreferAddrs(s.given, u.Node.Addrs))
		}
		if s.setPodRanges != nil {
			s.setPodRanges(u.Node.PodRanges)
		}
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	s.Sink.Apply(u)
}

// part is a part of the agent. It runs until ctx ends; an error ends the agent.
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

// runner is a source.
type runner interface {
	Run(context.Context) error
}

// newSource returns where Services come from, and what takes events.
func newSource(c *config.Settings, sink source.Sink) (runner, event.Recorder, error) {
	b := &c.Beeline
	if b.Manifests == "" {
		client := &c.KubeProxy.ClientConnection
		src, err := kube.New(kube.Options{
			Kubeconfig:         client.Kubeconfig,
			Master:             b.Master,
			ContentType:        client.ContentType,
			AcceptContentTypes: client.AcceptContentTypes,
			QPS:                client.QPS,
			Burst:              int(client.Burst),
			NodeName:           c.NodeName,
			ServiceRanges:      c.ServiceRanges,
			Annotations:        c.Annotations,
			Sink:               sink,
		})
		if err != nil {
			return nil, nil, err
		}
		return src, src.Record, nil
	}
	if err := os.MkdirAll(b.StateDir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("state folder: %w", err)
	}
	src, err := file.New(file.Options{
		Dir:           b.Manifests,
		StateFile:     filepath.Join(b.StateDir, "manifests.json"),
		ServiceRanges: c.ServiceRanges,
		NodePortMin:   c.NodePortMin,
		NodePortMax:   c.NodePortMax,
		Annotations:   c.Annotations,
		Sink:          sink,
	})
	return src, event.Discard, err
}

// describe returns what the agent tells of itself beside the maps.
func describe(c *config.Settings, cgroup string, started time.Time, endsSockets bool) bpfmap.Agent {
	a := bpfmap.Agent{
		PID:     os.Getpid(),
		Started: started,
		Version: version.String(),
		Node:    c.NodeName,
		Cgroup:  cgroup,

		SizedBy:      c.SizedBy,
		TunnelPort:   c.TunnelPort,
		KeepsSockets: !endsSockets,
	}
	switch kubeconfig := c.KubeProxy.ClientConnection.Kubeconfig; {
	case c.Beeline.Manifests != "":
		a.Source = "manifests " + c.Beeline.Manifests
	case kubeconfig != "":
		a.Source = "kubeconfig " + kubeconfig
	case c.Beeline.Master != "":
		a.Source = "API server " + c.Beeline.Master
	default:
		a.Source = "API server of the pod"
	}
	return a
}

// healthPages serves what load balancers and probes ask.
func healthPages(c *config.Settings, healthy *health.State, record event.Recorder) *health.Listener {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", healthy.Healthz)
	mux.HandleFunc("/livez", healthy.Livez)
	mux.HandleFunc("/startupz", healthy.Startupz)
	return &health.Listener{
		Name:     "healthz",
		Address:  c.HealthzAddress,
		Handler:  mux,
		HardFail: c.KubeProxy.BindAddressHardFail,
		Reason:   event.FailedProxierHealthServer,
		Record:   record,
	}
}

// metricsPages serves what Prometheus and people ask.
func metricsPages(c *config.Settings, registry *prometheus.Registry, record event.Recorder) *health.Listener {
	return &health.Listener{
		Name:    "metrics",
		Address: c.MetricsAddress,
		Handler: metrics.Pages(metrics.PagesOptions{
			Registry:  registry,
			Configz:   c.Configz,
			Profiling: c.KubeProxy.EnableProfiling,
		}),
		HardFail: c.KubeProxy.BindAddressHardFail,
		Reason:   event.FailedMetricsServer,
		Record:   record,
	}
}
