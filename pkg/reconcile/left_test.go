package reconcile_test

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// TestUDPLeft: a sync says that endpoints of UDP may have gone when it is the first,
// when fewer serve than before, and when frontends may lead to another Service.
func TestUDPLeft(t *testing.T) {
	l := start(t, newStore(t), asIs, reconcile.Options{})
	dns := func(change ...func(*model.Service)) *model.Service {
		s := service("dns", "10.96.0.1")
		s.Ports = []model.ServicePort{{Protocol: model.UDP, Port: 53}}
		for _, c := range change {
			c(s)
		}
		return s
	}
	dnsSlice := func(addrs ...string) *model.Slice {
		s := slice("dns-1", "dns", addrs...)
		s.Ports = []model.SlicePort{{Protocol: model.UDP, Port: 53}}
		return s
	}
	conditions := func(serving bool) *model.Slice {
		s := dnsSlice("10.0.0.1", "10.0.0.2")
		s.Endpoints[0].Ready, s.Endpoints[0].Serving, s.Endpoints[0].Terminating = false, serving, true
		return s
	}
	// One address is there twice; the second serves or not, the first does not.
	moved := func(serving bool) *model.Slice {
		s := dnsSlice("10.0.0.0", "10.0.0.1", "10.0.0.1", "10.0.0.5", "10.0.0.7")
		s.Endpoints[1].Ready, s.Endpoints[1].Serving = false, false
		s.Endpoints[2].Ready, s.Endpoints[2].Serving = serving, serving
		return s
	}
	other := dnsSlice("10.0.0.1")
	other.Service = "other"
	elsewhere := dnsSlice("10.0.0.1")
	elsewhere.Ports[0].Port = 54
	name := model.Name{Namespace: "default", Name: "dns"}
	for i, step := range []struct {
		what   string
		update source.Update
		want   bool
	}{
		{"the first sync", put(dns(), dnsSlice("10.0.0.1")), true},
		{"an endpoint comes", put(dnsSlice("10.0.0.1", "10.0.0.2")), false},
		{"one is on its way out", put(conditions(true)), false},
		{"one serves no more", put(conditions(false)), true},
		{"the one that does not serve goes", put(dnsSlice("10.0.0.2")), false},
		{"one goes and another comes", put(dnsSlice("10.0.0.1")), true},
		{"some come before and behind", put(dnsSlice("10.0.0.0", "10.0.0.1", "10.0.0.5", "10.0.0.7")), false},
		{"one is moved", put(moved(true)), false},
		{"it is there once again", put(dnsSlice("10.0.0.0", "10.0.0.1", "10.0.0.5", "10.0.0.7")), false},
		{"it is moved again", put(moved(true)), false},
		{"none of the two serves", put(moved(false)), true},
		{"one of those in between goes, and one comes", put(dnsSlice("10.0.0.0", "10.0.0.1", "10.0.0.6", "10.0.0.7")), true},
		{"one is left", put(dnsSlice("10.0.0.1")), true},
		{"another target port", put(elsewhere), true},
		{"the former one", put(dnsSlice("10.0.0.1")), true},
		{"slice of another Service", put(other), true},
		{"slice comes back", put(dnsSlice("10.0.0.1")), true},
		{"slice goes", source.Update{DeleteSlices: []model.Name{{Namespace: "default", Name: "dns-1"}}}, true},
		{"slice comes", put(dnsSlice("10.0.0.1")), false},
		{"the Service is told of again", put(dns()), false},
		{"the Service gets another policy", put(dns(func(s *model.Service) { s.InternalLocal = true })), false},
		{"the Service gets another port", put(dns(func(s *model.Service) { s.Ports[0].Name = "other" })), true},
		{"the Service gets another address", put(dns(func(s *model.Service) { s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")} })), true},
		{"a load balancer gets it", put(dns(func(s *model.Service) { s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")} })), true},
		{"the Service goes", source.Update{DeleteServices: []model.Name{name}}, true},
		{"the Service comes", put(dns()), true},
		{"TCP comes", put(service("web", "10.96.0.2"), slice("web-1", "web", "10.0.0.1", "10.0.0.2")), false},
		{"an endpoint of TCP goes", put(slice("web-1", "web", "10.0.0.1")), false},
		{"a Service of TCP goes", source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: "web"}}}, false},
	} {
		l.Apply(step.update)
		if i == 0 {
			l.Synced()
		}
		if got := l.next().UDPLeft; got != step.want {
			t.Errorf("%s: %t, want %t", step.what, got, step.want)
		}
	}
}

// TestServes: an endpoint serves what the sources have told last.
func TestServes(t *testing.T) {
	l := start(t, newStore(t), asIs, reconcile.Options{})
	name := tables.ServicePortName{
		Port:   model.PortName{Service: model.Name{Namespace: "default", Name: "web"}, Protocol: model.TCP},
		Family: model.IPv4,
	}
	endpoint := netip.MustParseAddrPort("10.0.0.1:8080")
	for _, step := range []struct {
		update source.Update
		want   bool
	}{
		{put(slice("web-1", "web", "10.0.0.1")), false},
		{put(service("web", "10.96.0.1")), true},
		{put(slice("web-1", "web", "10.0.0.2")), false},
	} {
		l.Apply(step.update)
		if got := l.Serves(name, endpoint); got != step.want {
			t.Errorf("after %+v: %t, want %t", step.update, got, step.want)
		}
	}
}
