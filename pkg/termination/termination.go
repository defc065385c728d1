// Package termination counts the connections that endpoints of this node still have while they
// terminate, and answers who waits until they have none, such as preStop hooks.
//
// The kernel counts, in the endpoint's network namespace: connections of all nodes, and those that no
// Service has led there. UDP has none. Sockets that the host's kernel does not see, as of gVisor, do
// not count.
package termination

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
)

const (
	// interval is the time between two counts while somebody waits, and idle while nobody does.
	interval = time.Second
	idle     = 10 * time.Second
	// A count is followed by a pause of shortest at least, and rest times as long as it worked: it
	// takes a tenth of a CPU at most.
	shortest = 100 * time.Millisecond
	rest     = 9
	// settleTime is how long an endpoint has to have terminated before it counts as drained: until
	// all nodes know, they send it new connections.
	settleTime = 5 * time.Second
)

// maxOfNamespace is how many endpoints of a namespace are counted: a node has some hundred pods, each of
// some Services and ports. Beyond that, those of further Services are not.
const maxOfNamespace = 4096

// Options configure a [Watcher].
type Options struct {
	// Known reports whether there is a Service of that name.
	Known func(model.Name) bool
	// Count returns how many TCP connections endpoints of this node have.
	Count func([]netip.AddrPort) (map[netip.AddrPort]int, error)
}

// Endpoint is an endpoint of a Service, on this node, that terminates.
type Endpoint struct {
	Service     model.Name
	AddrPort    netip.AddrPort
	Connections int // at the last count
	since       time.Time
	settled     bool // the last count began when all nodes knew that it terminates
}

// Watcher knows the endpoints of this node that terminate. Make one with [New]. It is a
// [net/http.Handler], for a path with the wildcards namespace and service.
type Watcher struct {
	opts Options
	wake chan struct{}

	mu          sync.Mutex
	services    map[model.Name]ofService
	byNamespace map[string]int       // endpoints
	changed     chan struct{}        // closed when there is something new
	waiting     int                  // requests
	elsewhere   int                  // those that are not of this node
	byNetwork   map[netip.Prefix]int // and of one client
	ended       bool
	err         error // of the last count
	failures    int   // in a row
}

// ofService is what terminates of a Service.
type ofService struct {
	endpoints []Endpoint
	// tooMany says that they, with those of other Services of the namespace, are more than are counted. They
	// are looked at again when they change.
	tooMany bool
}

// New returns a Watcher of no endpoints.
func New(o Options) *Watcher {
	return &Watcher{
		opts: o, wake: make(chan struct{}, 1),
		services: make(map[model.Name]ofService), byNamespace: make(map[string]int),
		changed: make(chan struct{}), byNetwork: make(map[netip.Prefix]int),
	}
}

// Set takes the endpoints of a Service on this node that terminate now, in order, and at most
// [policy.MaxTerminating]. It does not wait.
func (w *Watcher) Set(service model.Name, terminating []netip.AddrPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.services[service]
	others := w.byNamespace[service.Namespace] - len(was.endpoints)
	now := ofService{tooMany: others+len(terminating) > maxOfNamespace}
	if now.tooMany {
		terminating = nil
	}
	if now.tooMany == was.tooMany && slices.EqualFunc(was.endpoints, terminating, func(e Endpoint, a netip.AddrPort) bool { return e.AddrPort == a }) {
		return
	}
	now.endpoints = goOn(service, was.endpoints, terminating)
	if w.services[service] = now; !now.tooMany && len(now.endpoints) == 0 {
		delete(w.services, service)
	}
	if w.byNamespace[service.Namespace] = others + len(now.endpoints); w.byNamespace[service.Namespace] == 0 {
		delete(w.byNamespace, service.Namespace)
	}
	w.tell()
	w.countNow()
}

// goOn returns the endpoints of a Service, in order, with what is known of those that were there before.
func goOn(service model.Name, was []Endpoint, terminating []netip.AddrPort) []Endpoint {
	now := time.Now()
	list := make([]Endpoint, 0, len(terminating))
	for _, addr := range terminating {
		e := Endpoint{Service: service, AddrPort: addr, since: now}
		for len(was) > 0 && was[0].AddrPort.Compare(addr) < 0 {
			was = was[1:]
		}
		if len(was) > 0 && was[0].AddrPort == addr {
			e = was[0]
		}
		list = append(list, e)
	}
	return list
}

// countNow has the next count begin soon. It does not wait.
func (w *Watcher) countNow() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// tell wakes who waits for news. The caller holds the lock.
func (w *Watcher) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// Run counts, while endpoints terminate, until ctx ends. Requests are answered then.
func (w *Watcher) Run(ctx context.Context) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended = true
		w.tell()
	}()
	for {
		var next time.Duration
		took := pause.Work(func() { next = w.count() })
		if !pause.For(ctx, max(shortest, rest*took)) {
			return
		}
		var due <-chan time.Time
		if next > 0 {
			due = time.After(next)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-due:
		}
	}
}

// count counts the connections of all endpoints that terminate, and returns when to do so again; 0: when
// there are some.
func (w *Watcher) count() (next time.Duration) {
	begun := time.Now()
	all := w.unordered()
	if len(all) == 0 {
		return 0
	}
	addrs := make([]netip.AddrPort, 0, len(all))
	for i := range all {
		addrs = append(addrs, all[i].AddrPort)
	}
	counts, err := w.opts.Count(addrs)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteError(err)
	if err == nil {
		for _, s := range w.services {
			for i := range s.endpoints {
				e := &s.endpoints[i]
				if e.since.After(begun) {
					continue // is of the next count
				}
				e.Connections, e.settled = counts[e.AddrPort], begun.Sub(e.since) >= settleTime
			}
		}
	}
	w.tell()
	if w.waiting > 0 {
		return interval
	}
	return idle
}

// Endpoints returns the endpoints that terminate, in order.
func (w *Watcher) Endpoints() []Endpoint {
	all := w.unordered()
	slices.SortFunc(all, Endpoint.compare)
	return all
}

func (w *Watcher) unordered() (all []Endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.services {
		all = append(all, s.endpoints...)
	}
	return all
}

func (e Endpoint) compare(o Endpoint) int {
	return cmp.Or(e.Service.Compare(o.Service), e.AddrPort.Compare(o.AddrPort))
}

// noteError notes that a count has failed, or not, and logs it the first time. The caller holds the lock.
func (w *Watcher) noteError(err error) {
	if err == nil {
		w.failures = 0
	} else if w.failures++; w.failures == 1 {
		klog.ErrorS(err, "Connections of endpoints that terminate could not all be counted, trying again")
	}
	w.err = err
}
