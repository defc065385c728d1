package termination

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

const (
	// maxWaiting is how many requests may wait: a node has some hundred pods.
	maxWaiting = 256
	// maxElsewhere is how many of them may be of pods and other hosts, for anybody who reaches the
	// node may ask, and maxClient how many of one of these. The kubelet is on the node.
	maxElsewhere = maxWaiting / 2
	maxClient    = maxElsewhere / 8
	// longest is how long one of them waits.
	longest = time.Hour
	// writeTime is how long an answer may take to be written.
	writeTime = 10 * time.Second
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
//   - 504: the time of the parameter timeout is over. Without, a request waits an hour, and one from
//     this node as long as it takes.
//
// An agent that starts knows neither Service nor endpoint: until it does, the request waits.
func (w *Watcher) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	service := model.Name{Namespace: r.PathValue("namespace"), Name: r.PathValue("service")}
	client := clientOf(r)
	limit, err := waits(r, client)
	if err != nil {
		reply(to, http.StatusBadRequest, answer{Error: err.Error()})
		return
	}
	ctx := r.Context()
	if limit >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if full := w.enter(client); full != "" {
		reply(to, http.StatusServiceUnavailable, answer{Error: full})
		return
	}
	defer w.leave(client)
	// The server's own deadline is for answers that do not wait. Servers without one have none to move.
	deadline := http.NewResponseController(to)
	_ = deadline.SetWriteDeadline(time.Time{})
	status, a := w.wait(ctx, service)
	_ = deadline.SetWriteDeadline(time.Now().Add(writeTime))
	reply(to, status, a)
}

// waits returns how long a request of a client may wait; less than 0: without limit.
func waits(r *http.Request, client model.Client) (time.Duration, error) {
	most := longest
	if client.Here {
		most = -1
	}
	text := r.FormValue("timeout")
	if text == "" {
		return most, nil
	}
	asked, err := time.ParseDuration(text)
	if err != nil || asked < 0 {
		return 0, fmt.Errorf("timeout: %q is no duration, such as 30s", text)
	}
	if most < 0 {
		return asked, nil
	}
	return min(asked, most), nil
}

// clientOf returns who asks.
func clientOf(r *http.Request) model.Client {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return model.Client{}
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return model.ClientOf(net.TCPAddrFromAddrPort(remote), local)
}

// wait returns the answer, once there is one.
func (w *Watcher) wait(ctx context.Context, service model.Name) (status int, a answer) {
	if status, a = w.awaitReady(ctx); status != 0 {
		return status, a
	}
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

// awaitReady returns 0 once all Services are known, or else the answer without them.
func (w *Watcher) awaitReady(ctx context.Context) (status int, a answer) {
	for {
		select {
		case <-w.opts.Ready:
			return 0, a
		default:
		}
		_, _, changed := w.look(model.Name{})
		if changed == nil {
			return http.StatusServiceUnavailable, answer{Error: "the agent ends"}
		}
		select {
		case <-w.opts.Ready:
			return 0, a
		case <-changed:
		case <-ctx.Done():
			return http.StatusGatewayTimeout, answer{Error: "the agent starts, and does not know all Services yet"}
		}
	}
}

// look returns which endpoints of the Service terminate, and whether all of them have no connections.
// changed is closed when there is more to know; nil: that never is.
func (w *Watcher) look(service model.Name) (a answer, drained bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	drained = true
	s := w.services[service]
	for _, e := range s.endpoints {
		a.Endpoints = append(a.Endpoints, counted{e.AddrPort.String(), e.Connections})
		drained = drained && e.settled && e.Connections == 0
	}
	uncounted := w.failures >= maxFailures
	switch {
	case s.tooMany && !drained && !uncounted: // until then there may be room for all
	case s.tooMany && drained:
		a.Error = fmt.Sprintf("more than %d endpoints of the namespace terminate, which are not all counted", maxOfNamespace)
		drained = false
	case len(a.Endpoints) >= policy.MaxTerminating:
		a = answer{Error: fmt.Sprintf("%d endpoints or more terminate, which are not all counted", policy.MaxTerminating)}
		drained = false
	case uncounted:
		a.Error = fmt.Sprintf("connections cannot be counted: %v", w.err)
	}
	if w.ended {
		return a, drained, nil
	}
	return a, drained, w.changed
}

// enter lets a request of a client wait; when too many do it says so.
func (w *Watcher) enter(c model.Client) (full string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.waiting == maxWaiting:
		return fmt.Sprintf("%d requests wait, which is the most", maxWaiting)
	case c.Here:
	case w.elsewhere == maxElsewhere:
		return fmt.Sprintf("%d requests of pods and other hosts wait, which is the most", maxElsewhere)
	case w.byNetwork[c.Network] == maxClient:
		return fmt.Sprintf("%d requests of this client wait, which is the most", maxClient)
	}
	w.waiting++
	if !c.Here {
		w.elsewhere++
		w.byNetwork[c.Network]++
	}
	w.countNow()
	return ""
}

func (w *Watcher) leave(c model.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
	if c.Here {
		return
	}
	w.elsewhere--
	if w.byNetwork[c.Network]--; w.byNetwork[c.Network] == 0 {
		delete(w.byNetwork, c.Network)
	}
}

func reply(to http.ResponseWriter, status int, a answer) {
	if a.Endpoints == nil {
		a.Endpoints = []counted{}
	}
	to.Header().Set("Content-Type", "application/json")
	to.WriteHeader(status)
	_ = json.NewEncoder(to).Encode(a) // who has asked may be gone
}
