package agent_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// slowServer is an API server that lists one Service at once and EndpointSlices only when
// it is let go.
type slowServer struct {
	*httptest.Server
	listed  atomic.Bool // the Service
	letGo   chan struct{}
	stopped chan struct{}
}

func newSlowServer(t *testing.T) *slowServer {
	s := &slowServer{letGo: make(chan struct{}), stopped: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(s.stopped) })
	return s
}

func (s *slowServer) answer(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case query.Get("sendInitialEvents") != "": // lists by watching
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}`)
	case query.Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		select {
		case <-s.stopped:
		case <-r.Context().Done():
		}
	case strings.HasSuffix(r.URL.Path, "/services"):
		_, _ = io.WriteString(w, `{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [
			{"metadata": {"namespace": "default", "name": "web"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "protocol": "TCP"}]}}]}`)
		s.listed.Store(true)
	case strings.HasSuffix(r.URL.Path, "/endpointslices"):
		select {
		case <-s.letGo:
		case <-s.stopped:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, `{"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": {"resourceVersion": "1"}}`)
	case strings.HasSuffix(r.URL.Path, "/nodes"):
		_, _ = io.WriteString(w, `{"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}`)
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
	}
}

// TestSlowAPIServer: an agent that waits for its first lists is alive, however long that
// takes, has not started, and says what it does and waits for. A preStop hook that asks it meanwhile
// is not told that a Service has drained, or that there is none. At --v=2 it does not log each sync.
func TestSlowAPIServer(t *testing.T) {
	t.Parallel()
	server := newSlowServer(t)
	h := lab.NewHost(t)
	h.Relay(strings.TrimPrefix(server.URL, "http://"))
	agent := h.Start(lab.AgentBinary(t), "--master", server.URL, "--hostname-override", lab.NodeName,
		"--cgroup-root", h.Cgroup, "--bpffs", h.BPFFS, "--devices", "none", "--sync-period", "100ms", "--v=2")
	page := func(name string) error {
		_, err := h.Get("http://127.0.0.1:10256/" + name)
		return err
	}
	lab.Eventually(t, "the agent has the Service", server.listed.Load)
	lab.Eventually(t, "the agent says what it waits for", func() bool {
		return strings.Contains(agent.Output(), "endpointslices")
	})
	if before, _, _ := strings.Cut(agent.Output(), "endpointslices"); !strings.Contains(before, "Opening maps and loading programs") {
		t.Error("the agent does not say before that it loads its programs")
	}
	lab.Eventually(t, "the agent answers", func() bool { return page("livez") == nil })
	if page("startupz") == nil || page("healthz") == nil {
		t.Error("the agent says that it serves before all is listed")
	}
	var hooks sync.WaitGroup
	for _, service := range []string{"web", "unknown"} {
		hooks.Go(func() {
			// Longer than a request waits for an endpoint that terminates.
			if err := page("wait-until-drained/default/" + service + "?timeout=12s"); err == nil || !strings.HasSuffix(err.Error(), ": 504 Gateway Timeout") {
				t.Errorf("the preStop hook of Service %s is answered %v, want 504", service, err)
			}
		})
	}
	hooks.Wait()
	close(server.letGo)
	lab.Eventually(t, "the agent has started", func() bool { return page("startupz") == nil })
	lab.Eventually(t, "the agent is alive", func() bool { return page("livez") == nil })
	agent.Signal(unix.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if output := agent.Output(); strings.Contains(output, "Synced") || !strings.Contains(output, "Serving") {
		t.Error("the agent logs its syncs, or does not say that it serves")
	}
}
