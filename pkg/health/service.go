package health

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// retry is how long to wait before an address is tried again that could not be
// listened on, or not any more.
const retry = 5 * time.Second

// ServicesOptions configure [Services].
type ServicesOptions struct {
	// NodeName is for messages.
	NodeName string
	// NodePorts selects the addresses that load balancers ask at.
	NodePorts policy.NodePortAddresses
	// Healthy reports whether the agent keeps the tables true.
	Healthy func() bool
	Record  event.Recorder
	// Reported says that a former agent has made the events about what fails at the first
	// attempt for the checks of the first [Services.Update]: that is logged alone.
	Reported bool
}

// Services answer, each on its healthCheckNodePort, load balancers that want to know
// whether this node has endpoints. Make one with [NewServices].
type Services struct {
	opts ServicesOptions
	wake chan struct{}

	mu     sync.Mutex
	checks map[checkName]policy.HealthCheck
	addrs  []netip.Addr // on which NodePorts answer
	// updated is set by the first update. reported are the checks of it that were not tried yet,
	// when a former agent has made events about them.
	updated  bool
	reported map[checkName]bool

	conns *conns // of all servers
	ended chan ended
	// Of the loop only.
	servers map[checkName]*server
}

// checkName is whom a server answers for. Each family has its own endpoints.
type checkName struct {
	service model.Name
	family  model.Family
}

// NewServices returns servers of no Service.
func NewServices(opts ServicesOptions) *Services {
	return &Services{
		opts:     opts,
		wake:     make(chan struct{}, 1),
		checks:   make(map[checkName]policy.HealthCheck),
		reported: make(map[checkName]bool),
		conns:    &conns{most: maxCheckConns},
		ended:    make(chan ended),
		servers:  make(map[checkName]*server),
	}
}

// Update takes those checks that have changed, and the addresses on which NodePorts answer;
// nil when these are as before.
func (s *Services) Update(changed []policy.HealthCheck, nodePorts []netip.Addr) {
	if len(changed) == 0 && nodePorts == nil {
		return
	}
	s.mu.Lock()
	for _, c := range changed {
		name := checkName{c.Service, c.Family}
		s.checks[name] = c
		s.reported[name] = s.opts.Reported && !s.updated
		if c.Port == 0 {
			delete(s.checks, name)
		}
	}
	if nodePorts != nil {
		s.addrs = nodePorts
	}
	s.updated = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run keeps the servers until ctx ends.
func (s *Services) Run(ctx context.Context) {
	for {
		failed := s.sync(ctx)
		var again <-chan time.Time
		if failed {
			again = time.After(retry)
		}
		if !s.wait(ctx, again) {
			for _, server := range s.servers {
				server.close()
			}
			return
		}
	}
}

// wait returns when there is something to do: after an update, again, or a pause once a listener has ended.
// It reports whether ctx goes on.
func (s *Services) wait(ctx context.Context, again <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.wake:
			return true
		case <-again:
			return true
		case e := <-s.ended:
			e.forget()
			if again == nil {
				again = time.After(retry)
			}
		}
	}
}

// sync brings the servers to what is asked for: first those are closed whose port
// another may want. It reports whether an address could not be listened on.
func (s *Services) sync(ctx context.Context) (failed bool) {
	s.mu.Lock()
	checks, addrs, reported := maps.Clone(s.checks), s.addrs, s.reported
	s.reported = make(map[checkName]bool)
	s.mu.Unlock()
	for name, server := range s.servers {
		if checks[name].Port != server.port {
			server.close()
			delete(s.servers, name)
		}
	}
	for name, check := range checks {
		if s.servers[name] == nil {
			s.servers[name] = s.newServer(name, check.Port)
		}
		s.servers[name].local.Store(int64(check.Local))
	}
	for name, server := range s.servers {
		server.keep(s.listenOn(name, checks, addrs))
	}
	for name, server := range s.servers {
		for addr, err := range server.open(ctx, s.listenOn(name, checks, addrs)) {
			failed = true
			s.complain(name, server, addr, err, reported[name])
		}
	}
	return failed
}

// listenOn returns the addresses that a check answers at: the any-address of its
// family when load balancers may ask at all of them. A Service of one family then
// answers at the node's addresses of the other one too, where kube-proxy does not:
// which of a node's addresses a load balancer asks at has nothing to do with the Service.
func (s *Services) listenOn(name checkName, checks map[checkName]policy.HealthCheck, addrs []netip.Addr) []netip.Addr {
	if s.opts.NodePorts.All(name.family) {
		all := []netip.Addr{anyAddress(name.family)}
		other := checkName{name.service, otherFamily(name.family)}
		if _, answers := checks[other]; !answers && slices.ContainsFunc(addrs, other.has) {
			all = append(all, anyAddress(other.family))
		}
		return all
	}
	var selected []netip.Addr
	for _, a := range addrs {
		if name.has(a) {
			selected = append(selected, a)
		}
	}
	return selected
}

// has reports whether an address is of the check's family.
func (n checkName) has(a netip.Addr) bool { return model.FamilyOf(a) == n.family }

func otherFamily(f model.Family) model.Family {
	if f == model.IPv4 {
		return model.IPv6
	}
	return model.IPv4
}

func anyAddress(f model.Family) netip.Addr {
	if f == model.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// complain logs, once, why an address cannot be listened on; without an event if a
// former agent has made it.
func (s *Services) complain(name checkName, server *server, addr netip.Addr, err error, reported bool) {
	if server.failures[addr] == err.Error() {
		return
	}
	server.failures[addr] = err.Error()
	klog.ErrorS(err, "Health check of a Service cannot be answered, trying again", "service", name.service,
		"address", netip.AddrPortFrom(addr, server.port))
	if reported {
		return
	}
	s.opts.Record(event.Event{
		Service: name.service,
		Type:    event.Warning,
		Reason:  event.FailedServiceHealthCheck,
		Action:  "Listen",
		Fault:   fmt.Sprint("port ", server.port),
		Note: fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v",
			s.opts.NodeName, name.service, server.port, err),
	})
}

// handler answers for a Service of which local endpoints are on this node.
type handler struct {
	service model.Name
	local   atomic.Int64
	healthy func() bool
}

// ServeHTTP answers 200 when the node has endpoints and the agent is healthy.
func (h *handler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	local, healthy := h.local.Load(), h.healthy()
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(local, 10))
	code := http.StatusServiceUnavailable
	if local > 0 && healthy {
		code = http.StatusOK
	}
	writeJSON(w, code, fmt.Appendf(nil, `{
	"service": {
		"namespace": %q,
		"name": %q
	},
	"localEndpoints": %d,
	"serviceProxyHealthy": %t
}`, h.service.Namespace, h.service.Name, local, healthy))
}
