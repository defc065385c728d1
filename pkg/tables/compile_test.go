package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// lines shows each frontend as "port: kind key flags".
func lines(d Desired) []string {
	var list []string
	for _, sp := range d.Ports {
		for _, f := range sp.Frontends {
			list = append(list, fmt.Sprintf("%s %s: %s %s %04b", sp.Name.Port.Port, sp.Name.Family, f.Kind, f.Key, f.Flags))
		}
	}
	return list
}

func TestCompileFrontends(t *testing.T) {
	addr := netip.MustParseAddr
	full := model.Service{
		Name:            model.Name{Namespace: "ns", Name: "web"},
		Type:            "LoadBalancer",
		ClusterIPs:      []netip.Addr{addr("10.96.0.1"), addr("fd00::1")},
		ExternalIPs:     []netip.Addr{addr("192.0.2.1")},
		LoadBalancerIPs: []netip.Addr{addr("198.51.100.1"), addr("2001:db8::1")},
		Ports: []model.ServicePort{
			{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080},
			{Name: "dns", Protocol: model.UDP, Port: 53},
		},
	}
	tests := []struct {
		name   string
		change func(*model.Service)
		want   string
	}{
		{"dual stack", func(*model.Service) {}, `
			http IPv4: ClusterIP 10.96.0.1:80/TCP 0000
			http IPv4: LoadBalancer 198.51.100.1:80/TCP 0000
			http IPv4: ExternalIP 192.0.2.1:80/TCP 0000
			http IPv4: NodePort 0.0.0.0:30080/TCP 0000
			http IPv4: Address 10.96.0.1 1000
			http IPv4: Address 192.0.2.1 0000
			http IPv4: Address 198.51.100.1 0000
			dns IPv4: ClusterIP 10.96.0.1:53/UDP 0000
			dns IPv4: LoadBalancer 198.51.100.1:53/UDP 0000
			dns IPv4: ExternalIP 192.0.2.1:53/UDP 0000
			http IPv6: ClusterIP [fd00::1]:80/TCP 0000
			http IPv6: LoadBalancer [2001:db8::1]:80/TCP 0000
			http IPv6: NodePort [::]:30080/TCP 0000
			http IPv6: Address fd00::1 1000
			http IPv6: Address 2001:db8::1 0000
			dns IPv6: ClusterIP [fd00::1]:53/UDP 0000
			dns IPv6: LoadBalancer [2001:db8::1]:53/UDP 0000`},
		{"local policies", func(s *model.Service) {
			s.ClusterIPs, s.Ports = s.ClusterIPs[:1], s.Ports[:1]
			s.InternalLocal, s.ExternalLocal = true, true
		}, `
			http IPv4: ClusterIP 10.96.0.1:80/TCP 0011
			http IPv4: LoadBalancer 198.51.100.1:80/TCP 0010
			http IPv4: ExternalIP 192.0.2.1:80/TCP 0010
			http IPv4: NodePort 0.0.0.0:30080/TCP 0010
			http IPv4: Address 10.96.0.1 1000
			http IPv4: Address 192.0.2.1 0000
			http IPv4: Address 198.51.100.1 0000`},
		{"internal policy only", func(s *model.Service) {
			s.ClusterIPs, s.Ports = s.ClusterIPs[1:], s.Ports[1:]
			s.InternalLocal = true
		}, `
			dns IPv6: ClusterIP [fd00::1]:53/UDP 0011
			dns IPv6: LoadBalancer [2001:db8::1]:53/UDP 0000
			dns IPv6: Address fd00::1 1000
			dns IPv6: Address 2001:db8::1 0000`},
		{"source ranges of one family", func(s *model.Service) {
			s.Ports = s.Ports[1:]
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, `
			dns IPv4: ClusterIP 10.96.0.1:53/UDP 0000
			dns IPv4: LoadBalancer 198.51.100.1:53/UDP 0100
			dns IPv4: ExternalIP 192.0.2.1:53/UDP 0000
			dns IPv4: Address 10.96.0.1 1000
			dns IPv4: Address 192.0.2.1 0000
			dns IPv4: Address 198.51.100.1 0000
			dns IPv6: ClusterIP [fd00::1]:53/UDP 0000
			dns IPv6: LoadBalancer [2001:db8::1]:53/UDP 0000
			dns IPv6: Address fd00::1 1000
			dns IPv6: Address 2001:db8::1 0000`},
		{"an address of the load balancer that is external, too", func(s *model.Service) {
			s.ClusterIPs, s.Ports = s.ClusterIPs[:1], s.Ports[1:]
			s.ExternalIPs, s.LoadBalancerIPs = s.LoadBalancerIPs[:1], s.LoadBalancerIPs[:1]
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, `
			dns IPv4: ClusterIP 10.96.0.1:53/UDP 0000
			dns IPv4: LoadBalancer 198.51.100.1:53/UDP 0100
			dns IPv4: ExternalIP 198.51.100.1:53/UDP 0000
			dns IPv4: Address 10.96.0.1 1000
			dns IPv4: Address 198.51.100.1 0000
			dns IPv4: Address 198.51.100.1 0000`},
		{"no ports", func(s *model.Service) { s.Ports = nil }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := full
			tt.change(&svc)
			got := lines(Compile(&svc, nil, &model.LocalNode{}))
			var want []string
			for line := range strings.Lines(tt.want) {
				if line = strings.TrimSpace(line); line != "" {
					want = append(want, line)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

func TestCompilePort(t *testing.T) {
	svc := &model.Service{
		Name:            model.Name{Namespace: "ns", Name: "web"},
		Type:            "LoadBalancer",
		ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("fd00::/64"), netip.MustParsePrefix("10.0.0.0/8")},
		Ports:           []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080}},
		ExternalLocal:   true,
		AffinitySeconds: 17,
	}
	slice := &model.Slice{
		Name: model.Name{Namespace: "ns", Name: "web-1"}, Service: "web", Family: model.IPv4,
		Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{
			{Addr: netip.MustParseAddr("10.1.0.1"), NodeName: "here", Ready: true, Serving: true},
			{Addr: netip.MustParseAddr("10.1.0.2"), NodeName: "there", Ready: true, Serving: true},
		},
	}
	d := Compile(svc, []*model.Slice{slice}, &model.LocalNode{Name: "here"})
	if d.Name != svc.Name || len(d.Ports) != 1 {
		t.Fatalf("%+v", d)
	}
	sp := d.Ports[0]
	wantName := ServiceName{
		Port:   model.PortName{Service: svc.Name, Port: "http", Protocol: model.TCP},
		Family: model.IPv4, Type: "LoadBalancer", Number: 80, NodePort: 30080, ExternalLocal: true,
	}
	if sp.Name != wantName {
		t.Errorf("name %+v", sp.Name)
	}
	wantRanges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	if sp.AffinitySeconds != 17 || !slices.Equal(sp.SourceRanges, wantRanges) {
		t.Errorf("affinity %d, ranges %v", sp.AffinitySeconds, sp.SourceRanges)
	}
	if sp.Sets.Cluster != policy.Backends || len(sp.Sets.Backends) != 2 || sp.cluster().count() != 2 || sp.local().count() != 1 {
		t.Errorf("sets %+v", sp.Sets)
	}
}
