package inspect

import (
	"net/netip"
	"reflect"
	"testing"
)

// TestAddOrder: the sum of nodes that have other ports and backends is the same in whichever order they
// answer.
func TestAddOrder(t *testing.T) {
	node := func(port uint16, backends ...string) *Top {
		p := TopPort{PortName: PortName{Namespace: "shop", Service: "web", Port: port, Protocol: "TCP", Family: "IPv4"}}
		for _, b := range backends {
			p.Backends = append(p.Backends, TopBackend{Address: netip.MustParseAddrPort(b), Connections: 1})
		}
		return &Top{Services: []TopService{{Namespace: "shop", Name: "web", Ports: []TopPort{p}}}}
	}
	nodes := []*Top{node(443, "10.0.0.2:1"), node(80, "10.0.0.3:1", "10.0.0.1:1"), node(80, "10.0.0.2:1")}
	var first, last Top
	for i := range nodes {
		first.Add(nodes[i])
		last.Add(nodes[len(nodes)-1-i])
	}
	if !reflect.DeepEqual(first, last) {
		t.Errorf("added from the first:\n%+v\nfrom the last:\n%+v", first, last)
	}
	if p := first.Services[0].Ports[0]; p.Port != 80 || p.Backends[0].Address.String() != "10.0.0.1:1" {
		t.Errorf("the first port is %+v", p)
	}
}
