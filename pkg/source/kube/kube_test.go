package kube

import (
	"context"
	"errors"
	"net/http"
	"path"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/tests/wait"
)

// unsynced fails the test when it is told anything.
type unsynced struct{ t *testing.T }

func (u unsynced) Apply(source.Update) { u.t.Error("update without a server") }
func (u unsynced) Synced()             { u.t.Error("synced without a server") }

// roundTrip is a function as a round tripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRunEndsWhileTheServerIsAway(t *testing.T) {
	var failed sync.Map // resources that were asked for
	config := &rest.Config{Host: "http://192.0.2.1", Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		failed.Store(path.Base(r.URL.Path), nil)
		return nil, errors.New("away")
	})}
	s, err := New(Options{Config: config, NodeName: "n", Sink: unsynced{t}})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	for _, resource := range []string{"services", "endpointslices", "nodes"} {
		wait.Until(t, resource+" are asked for in vain", func() bool { _, ok := failed.Load(resource); return ok })
	}
	cancel()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(wait.Limit):
		t.Fatal("Run goes on after its context is done")
	}
}

// TestOnly: of one Service the server is asked for nothing of others.
func TestOnly(t *testing.T) {
	var asked sync.Map // selectors by path
	config := &rest.Config{Host: "http://192.0.2.1", Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		q := r.URL.Query()
		asked.Store(r.URL.Path, q.Get("fieldSelector")+q.Get("labelSelector"))
		return nil, errors.New("away")
	})}
	s, err := New(Options{Config: config, NodeName: "n", Sink: unsynced{t}, Only: model.Name{Namespace: "shop", Name: "web"}})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	for path, want := range map[string]string{
		"/api/v1/namespaces/shop/services":                         "spec.clusterIP!=None,spec.type!=ExternalName,metadata.name=web",
		"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices": "!service.kubernetes.io/headless,kubernetes.io/service-name=web",
		"/api/v1/nodes": "metadata.name=n",
	} {
		var got any
		wait.Until(t, path+" is asked for", func() (ok bool) { got, ok = asked.Load(path); return ok })
		if got != want {
			t.Errorf("%s: asked for %q, want %q", path, got, want)
		}
	}
	cancel()
	must(t, <-done)
}
