package main

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/health"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/web"
	"github.com/beeline-lb/beeline/pkg/metrics"
)

// healthPages serves what load balancers, probes and preStop hooks ask.
func healthPages(c *config.Settings, healthy *health.State, terminating http.Handler, record event.Recorder) *health.Listener {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", healthy.Healthz)
	mux.HandleFunc("/livez", healthy.Livez)
	mux.HandleFunc("/startupz", healthy.Startupz)
	mux.Handle("GET /wait-until-drained/{namespace}/{service}", terminating)
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

// webInterval is the time between two readings of the web page.
const webInterval = 2 * time.Second

// webPage serves the page of beeline web until ctx ends. It opens the maps for each reading, as the
// command does.
func webPage(ctx context.Context, c *config.Settings, record event.Recorder) error {
	page := web.New(web.Options{
		Read: func() (*inspect.Sample, error) {
			return inspect.Read(c.Beeline.BPFFS, (*inspect.Datapath).Sample)
		},
		Listen: func(o inspect.EventOptions) (web.Listener, error) {
			return inspect.Listen(c.Beeline.BPFFS, o)
		},
		Interval: webInterval,
	})
	defer page.Close()
	listener := &health.Listener{
		Name:     "web",
		Address:  c.WebAddress,
		Handler:  page,
		HardFail: c.KubeProxy.BindAddressHardFail,
		Reason:   event.FailedWebServer,
		Record:   record,
	}
	return listener.Run(ctx)
}
