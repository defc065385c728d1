package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/health"
	"github.com/beeline-lb/beeline/pkg/kubeproxy"
	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/file"
	"github.com/beeline-lb/beeline/pkg/source/host"
	"github.com/beeline-lb/beeline/pkg/source/kube"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/version"
)

// serve runs the agent until ctx ends.
func serve(ctx context.Context, c *config.Settings) error {
	started := time.Now()
	tuneHost(c)
	cgroup, err := cgroupRoot(&c.Beeline)
	if err != nil {
		return err
	}
	d, err := datapath.Prepare(datapathOptions(c, cgroup))
	if err != nil {
		return err
	}
	have, err := d.Maps().Snapshot()
	if err != nil {
		return errors.Join(err, d.Close())
	}
	d.Maps().SetAgent(describe(c, cgroup, started))
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(metrics.NewDatapath(d.Maps()))
	syncs := metrics.NewSync(registry)

	var healthy *health.State
	r := reconcile.New(tables.Restore(d.Maps(), have), d.Maps(), reconcile.Options{
		Node:              model.Node{Name: c.NodeName, Addrs: c.NodeAddrs},
		NodePortAddresses: c.NodePorts,
		ServiceCIDRs:      c.ServiceRanges,
		MinSyncPeriod:     c.MinSyncPeriod,
		Complete: func() error {
			if err := d.Attach(); err != nil {
				return err
			}
			klog.InfoS("Serving", "version", version.String(), "node", c.NodeName, "cgroup", cgroup,
				"pins", datapath.Dir(c.Beeline.BPFFS), "after", time.Since(started).Round(time.Millisecond))
			return nil
		},
		Synced: func(s reconcile.Sync) {
			syncs.Observe(s)
			d.Maps().SetSynced(s.Start.Add(s.Duration), s.Pending)
			healthy.Synced()
			klog.V(2).InfoS("Synced", "services", s.Services, "took", s.Duration, "pending", s.Pending)
		},
	})
	healthy = health.New(r.Oldest)
	node := &nodeSink{Sink: r, given: c.NodeAddrs, setAddrs: d.SetNodeAddrs, changed: make(chan struct{}, 1)}
	if c.KubeProxy.DetectLocalMode == config.LocalModeNodeCIDR {
		node.setPodRanges = d.SetInternalCIDRs
	}
	src, err := newSource(c, node)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	if err := listen(ctx, c, registry, healthy); err != nil {
		return errors.Join(err, d.Close())
	}
	if addrs, err := host.Addresses(); err == nil {
		r.SetLocalAddresses(addrs)
	}
	flows := flow.New(flow.Options{
		Maps:     d.Maps(),
		Timeouts: c.Timeouts,
		Walked:   metrics.NewFlows(registry, d.Maps().MaxFlows()).Observe,
	})
	devices := func(ctx context.Context) { host.FollowDevices(ctx, node.changed, d.SyncDevices) }
	return errors.Join(run(ctx, r, src, flows.Run, devices, kubeproxy.Follow), d.Close())
}

// cgroupRoot returns the cgroup whose processes are served.
func cgroupRoot(b *config.BeelineConfiguration) (string, error) {
	if b.CgroupRoot != "" {
		return b.CgroupRoot, nil
	}
	return datapath.FindCgroup2()
}

// datapathOptions returns where the datapath goes.
func datapathOptions(c *config.Settings, cgroup string) datapath.Options {
	return datapath.Options{
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
		Internal:        c.Internal,
		MasqueradeAll:   c.MasqueradeAll,
		SNATPortMin:     c.SNATPortMin,
		SNATPortMax:     c.SNATPortMax,
	}
}

// nodeSink is a sink that tells of the Node's addresses and pod ranges.
type nodeSink struct {
	source.Sink
	given []netip.Addr // go before the Node's
	// nil: they do not matter
	setAddrs     func([]netip.Addr)
	setPodRanges func([]netip.Prefix)
	changed      chan struct{} // of room 1
}

// Apply hands the update on.
func (s *nodeSink) Apply(u source.Update) {
	if u.Node != nil {
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

// runner is a source.
type runner interface {
	Run(context.Context) error
}

// run runs the parts of the agent until ctx ends or one of them fails.
func run(ctx context.Context, r *reconcile.Reconciler, src runner, others ...func(context.Context)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var parts sync.WaitGroup
	parts.Go(func() { host.Watch(ctx, r.SetLocalAddresses) })
	for _, part := range others {
		parts.Go(func() { part(ctx) })
	}
	parts.Go(func() {
		if err := src.Run(ctx); err != nil {
			cancel(err)
		}
	})
	err := r.Run(ctx)
	cancel(err)
	parts.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// newSource returns where Services come from.
func newSource(c *config.Settings, sink source.Sink) (runner, error) {
	b := &c.Beeline
	if b.Manifests == "" {
		client := &c.KubeProxy.ClientConnection
		return kube.New(kube.Options{
			Kubeconfig:         client.Kubeconfig,
			Master:             b.Master,
			QPS:                client.QPS,
			Burst:              int(client.Burst),
			ContentType:        client.ContentType,
			AcceptContentTypes: client.AcceptContentTypes,
			NodeName:           c.NodeName,
			Sink:               sink,
		})
	}
	if err := os.MkdirAll(b.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	return file.New(file.Options{
		Dir:           b.Manifests,
		StateFile:     filepath.Join(b.StateDir, "manifests.json"),
		ServiceRanges: c.ServiceRanges,
		Sink:          sink,
	})
}

// describe returns what the agent tells of itself beside the maps.
func describe(c *config.Settings, cgroup string, started time.Time) bpfmap.Agent {
	a := bpfmap.Agent{
		PID:     os.Getpid(),
		Started: started,
		Version: version.String(),
		Node:    c.NodeName,
		Cgroup:  cgroup,
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

// listen serves metrics and health until ctx ends.
func listen(ctx context.Context, c *config.Settings, registry *prometheus.Registry, healthy http.Handler) error {
	metricsMux := http.NewServeMux()
	metricsMux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	healthMux := http.NewServeMux()
	healthMux.Handle("/healthz", healthy)
	healthMux.Handle("/livez", healthy)
	return errors.Join(
		listenOn(ctx, "--metrics-bind-address", c.MetricsAddress, metricsMux),
		listenOn(ctx, "--healthz-bind-address", c.HealthzAddress, healthMux),
	)
}

func listenOn(ctx context.Context, flag, address string, handler http.Handler) error {
	if address == "" {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "HTTP server ended", "flag", flag)
		}
	}()
	return nil
}
