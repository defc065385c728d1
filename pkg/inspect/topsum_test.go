package inspect

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
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

// TestAddBackends: where nodes have only backends of their zone, as by topology hints, those of all zones are
// counted; an agent of an older version does not tell which are on its node.
func TestAddBackends(t *testing.T) {
	node := func(own, others int) *Top {
		var p TopPort
		for i := range own + others {
			p.Backends = append(p.Backends, TopBackend{Address: netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:1", i+1)), OnNode: i < own})
		}
		top := &Top{Services: []TopService{{Namespace: "shop", Name: "web", Ports: []TopPort{p}}}}
		top.Keep(DetailServices)
		top.Keep(DetailServices) // by the node and by who asks it
		return top
	}
	for name, tt := range map[string]struct {
		nodes []*Top
		want  int
	}{
		"every node has all":          {[]*Top{node(1, 2), node(2, 1), node(0, 3)}, 3},
		"each zone has its own":       {[]*Top{node(1, 1), node(1, 1), node(2, 0)}, 4},
		"on nodes that do not answer": {[]*Top{node(1, 4)}, 5},
		"an older agent":              {[]*Top{{Services: []TopService{{Namespace: "shop", Name: "web", BackendCounts: &BackendCounts{Backends: 4}}}}, node(1, 1)}, 4},
	} {
		var all Top
		for _, n := range tt.nodes {
			all.Add(n)
		}
		if got := all.Services[0].BackendCount(); got != tt.want {
			t.Errorf("%s: %d backends, want %d", name, got, tt.want)
		}
	}
}

// TestTopJSON: a Service without ports has an empty list of them, one without backends as many as 0, and what
// a detail does not have is absent.
func TestTopJSON(t *testing.T) {
	for detail, want := range map[TopDetail]string{
		DetailBackends: `"flows":0,"ports":[]}`, DetailServices: `"flows":0,"backends":0,"backendsOnNode":0}`,
	} {
		top := &Top{Services: []TopService{{Namespace: "shop", Name: "web", Ports: []TopPort{}}}}
		top.Keep(detail)
		text, err := json.Marshal(&top.Services[0])
		if err != nil || !strings.HasSuffix(string(text), want) {
			t.Errorf("%s: %s, %v", detail, text, err)
		}
		var read TopService
		if err := json.Unmarshal(text, &read); err != nil || !reflect.DeepEqual(read, top.Services[0]) {
			t.Errorf("%s: read as %+v, %v", detail, read, err)
		}
	}
}
