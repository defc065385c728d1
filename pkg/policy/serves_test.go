package policy

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// TestServes: what answers for the Service port serves, whatever this node would choose.
func TestServes(t *testing.T) {
	svc := &model.Service{
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []model.ServicePort{httpPort, {Name: "dns", Protocol: model.UDP, Port: 53}},
	}
	weightless := httpSlice(model.IPv4, ready(6))
	weightless.Weight = new(uint8)
	list := []*model.Slice{
		httpSlice(model.IPv4, ready(1), ready(2).forZones("zone-b"), draining(3), gone(4), starting(5)),
		httpSlice(model.IPv6, ready(1)),
		weightless,
	}
	four := func(number int) netip.Addr { return podAddr(model.IPv4, number) }
	for _, c := range []struct {
		name string
		port model.ServicePort
		addr netip.Addr
		at   uint16
		want bool
	}{
		{"ready", httpPort, four(1), targetPort, true},
		{"hinted at for others", httpPort, four(2), targetPort, true},
		{"terminating", httpPort, four(3), targetPort, true},
		{"terminating, not serving", httpPort, four(4), targetPort, false},
		{"not ready", httpPort, four(5), targetPort, false},
		{"of weight 0", httpPort, four(6), targetPort, true},
		{"unknown", httpPort, four(7), targetPort, false},
		{"of another port", httpPort, four(1), targetPort + 1, false},
		{"of a port without slices", svc.Ports[1], four(1), targetPort, false},
		{"of no port of the Service", model.ServicePort{Name: "http", Protocol: model.UDP}, four(1), targetPort, false},
		{"of a family that the Service lacks", httpPort, podAddr(model.IPv6, 1), targetPort, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := model.PortName{Port: c.port.Name, Protocol: c.port.Protocol}
			if got := Serves(svc, port, netip.AddrPortFrom(c.addr, c.at), list); got != c.want {
				t.Errorf("Serves = %t, want %t", got, c.want)
			}
		})
	}
}

// TestServesWide: it is asked of each connected socket, so it does not look at all endpoints.
func TestServesWide(t *testing.T) {
	const ports, sliceCount, endpoints, sockets = 10, 50, 1000, 20_000
	svc, list := wide(ports, sliceCount, endpoints, false)
	name := model.PortName{Port: "port-9", Protocol: model.TCP}
	bounds.Check(t, sockets, func() {
		for i := range sockets {
			addr := list[i%sliceCount].Endpoints[i%endpoints].Addr
			if port := uint16(9 + i%2); Serves(svc, name, netip.AddrPortFrom(addr, port), list) != (port == 10) {
				t.Fatalf("%v serves at port 9, or does not at port 10", addr)
			}
		}
	})
}
