package cli_test

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// TestExplainService: all frontends of a Service, NodePorts too, are explained by one reading of the tables.
func TestExplainService(t *testing.T) {
	ports := manyPorts(20)
	for i := range ports {
		ports[i].NodePort = uint16(30000 + i)
	}
	endpoints := make([]model.Endpoint, 20000)
	for i := range endpoints {
		endpoints[i] = ready(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String(), "node-b")
	}
	bpffs, _ := pinned(t, []served{
		{&model.Service{Name: name("shop/ports"), Type: "NodePort", ClusterIPs: addrs("10.96.0.40"), Ports: ports}, nil},
		{
			&model.Service{
				Name: name("shop/large"), Type: "ClusterIP", ClusterIPs: addrs("10.96.0.41"),
				Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
			},
			[]*model.Slice{slice("shop/large", "", model.TCP, 8080, endpoints...)},
		},
	})
	d, err := inspect.Open(bpffs)
	check(t, err)
	defer d.Close()
	e := d.Explainer()
	defer e.Close()
	once := bounds.Allocated(func() { _, err = d.Service(name("shop/ports")) })
	check(t, err)
	var list []*inspect.Explanation
	used := bounds.Allocated(func() { list, err = e.ExplainService(name("shop/ports"), "") })
	check(t, err)
	if len(list) != 2*len(ports) {
		t.Errorf("%d explanations of %d ports with a NodePort each", len(list), len(ports))
	}
	if used > 2*once {
		t.Errorf("%d explanations took %d bytes of memory, the Service alone %d", len(list), used, once)
	}
}
