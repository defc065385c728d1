package reconcile_test

import (
	"fmt"
	"net/netip"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

// allocated returns how many bytes have been allocated since the process began.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// wideService returns a Service that asks for 5,000 times 10,000 frontends and endpoints, and for 5,000
// times as many source ranges, as one object of some hundred kilobytes can.
func wideService() (u source.Update, name model.Name) {
	const ports, addrs = 5000, 10_000
	svc, slice := ofTenant("greedy", "wide", 1, ports)
	svc.HealthCheckPort = 30000
	for i := range addrs {
		addr := func(first byte) netip.Addr { return netip.AddrFrom4([4]byte{first, 0, byte(i >> 8), byte(i)}) }
		svc.ExternalIPs = append(svc.ExternalIPs, addr(172))
		svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, addr(198))
		svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(addr(203), 32))
		if i%1000 == 0 {
			more := *slice
			more.Name.Name, more.Endpoints = fmt.Sprint(slice.Name.Name, "-", i), nil
			u.PutSlices = append(u.PutSlices, &more)
		}
		more := u.PutSlices[len(u.PutSlices)-1]
		more.Endpoints = append(more.Endpoints, model.Endpoint{Addr: addr(10), NodeName: "here", Ready: true, Serving: true, Terminating: i%2 == 0})
	}
	u.PutServices = append(u.PutServices, svc)
	return u, svc.Name
}

// TestWideService: a Service whose ports, addresses, endpoints and source ranges are each few enough for
// an object, and together beyond all tables, costs an agent what it may have of them. It is served
// with that and says so; another Service changes beside it.
func TestWideService(t *testing.T) {
	const most = 256 << 20 // the tests' store has a part of it
	narrow := limits
	narrow.Services.Size, narrow.Frontends.Size, narrow.Backends.Size = 1<<16, 1<<17, 1<<17
	held := tablestest.New(t, narrow)
	var told []model.Fault
	terminating := make(map[model.Name]int)
	opts := reconcile.Options{
		LocalNode:   model.LocalNode{Name: "here"},
		Faults:      func(_ model.Name, all, _ []model.Fault) { told = all },
		Terminating: func(name model.Name, list []netip.AddrPort) { terminating[name] = len(list) },
	}
	l := start(t, held, asIs, opts)
	wide, name := wideService()
	l.Apply(put(service("web", "10.96.0.1"), slice("web-1", "web", "10.1.0.1")))
	before := allocated()
	l.Apply(wide)
	l.Synced()
	s := l.applied()
	if used := allocated() - before; used > most {
		t.Errorf("the sync took %d bytes of memory, more than %d", used, most)
	}
	if len(s.Full) > 0 || s.Pending > 0 || s.Limited != 1 {
		t.Errorf("tables full %v, %d Services wait, %d get less than they ask for", s.Full, s.Pending, s.Limited)
	}
	if len(s.Checks) != 1 || s.Checks[0].Local != 10_000 {
		t.Errorf("health checks are %+v", s.Checks)
	}
	if n := terminating[name]; n == 0 || n > 1<<14 {
		t.Errorf("%d endpoints terminate", n)
	}
	has := entriesOf(t, held)
	if got := has[name]; got.ports != 5000 || got.frontends != 1<<14 || got.backends != 3*5000 || got.ranges != 0 {
		t.Errorf("it has %+v", got)
	}
	if len(told) != 3 || strings.Count(has[name].lost, ";") != 2 {
		t.Errorf("told %v, the tables say %q", told, has[name].lost)
	}

	before = allocated()
	l.Apply(put(slice("web-1", "web", "10.1.0.2")))
	if s := l.applied(); s.Services != 1 {
		t.Errorf("%d Services are applied", s.Services)
	}
	if used := allocated() - before; used > 1<<20 {
		t.Errorf("the change of another Service took %d bytes of memory", used)
	}
	if got := l.leads("10.96.0.1:80"); len(got) != 1 || got[0] != "10.1.0.2:8080" {
		t.Errorf("the other Service leads to %v", got)
	}
}
