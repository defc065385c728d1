package metrics

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ProxyMode is the answer of /proxyMode.
const ProxyMode = "beeline"

// maxScrapes is how many clients are given metrics at a time: each answer takes memory of its own.
const maxScrapes = 4

// PagesOptions configure the pages.
type PagesOptions struct {
	Registry *prometheus.Registry
	// Configz returns the configuration by API group.
	Configz func() map[string]any
	// Profiling adds /debug/pprof.
	Profiling bool
}

// Pages returns the pages of the metrics address, which are those of kube-proxy.
func Pages(o PagesOptions) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	// Who scrapes it at kube-proxy goes on to. That has nothing there either: no part of it has such a health check.
	mux.Handle("/metrics/slis", promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", text("ok"))
	mux.HandleFunc("/proxyMode", text(ProxyMode))
	mux.HandleFunc("/configz", configz(o.Configz))
	if o.Profiling {
		mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// The client has gone when this fails.
		_, _ = io.WriteString(w, body)
	}
}

func configz(content func() map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(content())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body)
	}
}
