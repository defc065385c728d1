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
	"maps"
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
// some Services and ports. So many more, of Services that there is no room for, are kept until there is.
const maxOfNamespace = 4096

// Options configure a [Watcher].
type Options struct {
	// Ready is closed once all Services, and the endpoints that terminate, have been told. No request is
	// answered before about whether there is either.
	Ready <-chan struct{}
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

	mu         sync.Mutex
	services   map[model.Name]ofService
	namespaces map[string]*ofNamespace
	changed    chan struct{}        // closed when there is something new
	waiting    int                  // requests
	elsewhere  int                  // those that are not of this node
	byNetwork  map[netip.Prefix]int // and of one client
	ended      bool
	err        error // of the last count
	failures   int   // in a row
}

// ofService is what terminates of a Service.
type ofService struct {
	endpoints []Endpoint // that are counted
	// tooMany says that all, with those of other Services of the namespace, are more than are counted. Those
	// that were counted before still are.
	tooMany bool
}

// ofNamespace is what terminates of the Services of a namespace.
type ofNamespace struct {
	endpoints int // that are counted
	// refused are all endpoints of Services that have too many. They are looked at again when others are
	// gone, those of Services that are not kept for want of room when they change.
	refused map[string][]netip.AddrPort
	kept    int // endpoints in refused
}

// New returns a Watcher of no endpoints.
func New(o Options) *Watcher {
	return &Watcher{
		opts: o, wake: make(chan struct{}, 1),
		services: make(map[model.Name]ofService), namespaces: make(map[string]*ofNamespace),
		changed: make(chan struct{}), byNetwork: make(map[netip.Prefix]int),
	}
}

// Set takes the endpoints of a Service on this node that terminate now, in order, and at most
// [policy.MaxTerminating], and keeps the list. It does not wait.
func (w *Watcher) Set(service model.Name, terminating []netip.AddrPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.services[service]; !known && len(terminating) == 0 {
		return
	}
	ns := w.namespaces[service.Namespace]
	if ns == nil {
		ns = &ofNamespace{refused: make(map[string][]netip.AddrPort)}
		w.namespaces[service.Namespace] = ns
	}
	before := ns.endpoints
	w.set(ns, service, terminating)
	if ns.endpoints < before {
		for _, name := range slices.Sorted(maps.Keys(ns.refused)) {
			w.set(ns, model.Name{Namespace: service.Namespace, Name: name}, ns.refused[name])
		}
	}
	if ns.endpoints == 0 && len(ns.refused) == 0 {
		delete(w.namespaces, service.Namespace)
	}
}

// set is Set for one Service of a namespace. The caller holds the lock.
func (w *Watcher) set(ns *ofNamespace, service model.Name, terminating []netip.AddrPort) {
	was := w.services[service]
	others := ns.endpoints - len(was.endpoints)
	now := ofService{tooMany: others+len(terminating) > maxOfNamespace}
	ns.admit(service.Name)
	if now.tooMany {
		ns.refuse(service.Name, terminating)
		terminating = inBoth(was.endpoints, terminating)
	}
	if now.tooMany == was.tooMany && slices.EqualFunc(was.endpoints, terminating, func(e Endpoint, a netip.AddrPort) bool { return e.AddrPort == a }) {
		return
	}
	now.endpoints = goOn(service, was.endpoints, terminating)
	if w.services[service] = now; !now.tooMany && len(now.endpoints) == 0 {
		delete(w.services, service)
	}
	ns.endpoints = others + len(now.endpoints)
	w.tell()
	w.countNow()
}

// refuse keeps the endpoints of a Service for later, if there is room.
func (ns *ofNamespace) refuse(name string, endpoints []netip.AddrPort) {
	if ns.kept+len(endpoints) <= maxOfNamespace {
		ns.refused[name] = endpoints
		ns.kept += len(endpoints)
	}
}

// admit undoes refuse.
func (ns *ofNamespace) admit(name string) {
	ns.kept -= len(ns.refused[name])
	delete(ns.refused, name)
}

// inBoth returns those of the addresses that are of endpoints, both in order.
func inBoth(endpoints []Endpoint, addrs []netip.AddrPort) (both []netip.AddrPort) {
	for i := range endpoints {
		if _, found := slices.BinarySearchFunc(addrs, endpoints[i].AddrPort, netip.AddrPort.Compare); found {
			both = append(both, endpoints[i].AddrPort)
		}
	}
	return both
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
