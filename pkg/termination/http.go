package termination

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

const (
	// maxWaiting is how many requests may wait: a node has some hundred pods, and anybody who
	// reaches it may ask.
	maxWaiting = 256
	// maxFailures is after how many counts in a row that have failed a request waits no longer.
	maxFailures = 5
	// unseen is how long a request waits for an endpoint that terminates: the kubelet may call the
	// preStop hook before the API server's watch has told.
	unseen = 10 * time.Second
)

// answer is what a request is answered.
type answer struct {
	Endpoints []counted `json:"endpoints"` // of this node, that terminate
	Error     string    `json:"error,omitempty"`
}

type counted struct {
	Endpoint    string `json:"endpoint"`    // address:port
	Connections int    `json:"connections"` // at the last count
}

// ServeHTTP answers when the endpoints of a Service that terminate on this node have no connections:
//
//   - 200: they have none, or none terminates within 10 s;
//   - 400: what is asked for makes no sense;
//   - 404: there is no such Service;
//   - 503: too many wait or terminate, connections cannot be counted, or the agent ends;
//   - 504: the time of the parameter timeout is over; it has none without.
func (w *Watcher) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	service := model.Name{Namespace: r.PathValue("namespace"), Name: r.PathValue("service")}
	ctx := r.Context()
	if text := r.FormValue("timeout"); text != "" {
		limit, err := time.ParseDuration(text)
		if err != nil || limit < 0 {
			reply(to, http.StatusBadRequest, answer{Error: fmt.Sprintf("timeout: %q is no duration, such as 30s", text)})
			return
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if !w.enter() {
		reply(to, http.StatusServiceUnavailable, answer{Error: fmt.Sprintf("%d requests wait, which is the most", maxWaiting)})
		return
	}
	defer w.leave()
	status, a := w.wait(ctx, service)
	reply(to, status, a)
}

// wait returns the answer, once there is one.
func (w *Watcher) wait(ctx context.Context, service model.Name) (status int, a answer) {
	none := time.NewTimer(unseen)
	defer none.Stop()
	seen := false
	for {
		var drained bool
		var changed <-chan struct{}
		a, drained, changed = w.look(service)
		seen = seen || len(a.Endpoints) > 0
		switch {
		case changed == nil:
			a.Error = "the agent ends"
			return http.StatusServiceUnavailable, a
		case !w.opts.Known(service):
			a.Error = fmt.Sprintf("there is no Service %s", service)
			return http.StatusNotFound, a
		case drained && seen:
			return http.StatusOK, a
		case a.Error != "":
			return http.StatusServiceUnavailable, a
		}
		select {
		case <-changed:
		case <-none.C:
			if !seen {
				return http.StatusOK, a
			}
		case <-ctx.Done():
			a.Error = "they have connections still"
			if !seen {
				a.Error = "none terminates on this node yet"
			}
			return http.StatusGatewayTimeout, a
		}
	}
}

// look returns which endpoints of the Service terminate, and whether all of them have no connections.
// changed is closed when there is more to know; nil: that never is.
func (w *Watcher) look(service model.Name) (a answer, drained bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	drained = true
	for _, e := range w.endpoints[service] {
		a.Endpoints = append(a.Endpoints, counted{e.AddrPort.String(), e.Connections})
		drained = drained && e.settled && e.Connections == 0
	}
	switch {
	case len(a.Endpoints) >= policy.MaxTerminating:
		a = answer{Error: fmt.Sprintf("%d endpoints or more terminate, which are not all counted", policy.MaxTerminating)}
		drained = false
	case w.failures >= maxFailures:
		a.Error = fmt.Sprintf("connections cannot be counted: %v", w.err)
	}
	if w.ended {
		return a, drained, nil
	}
	return a, drained, w.changed
}

// enter lets a request wait, unless too many do.
func (w *Watcher) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == maxWaiting {
		return false
	}
	w.waiting++
	w.countNow()
	return true
}

func (w *Watcher) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
}

func reply(to http.ResponseWriter, status int, a answer) {
	if a.Endpoints == nil {
		a.Endpoints = []counted{}
	}
	to.Header().Set("Content-Type", "application/json")
	to.WriteHeader(status)
	_ = json.NewEncoder(to).Encode(a) // who has asked may be gone
}
