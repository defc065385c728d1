package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
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

// TestAddNew: new connections that nodes have seen are summed, also where some node has not listened; those of a
// backend that has left are forgotten.
func TestAddNew(t *testing.T) {
	web := PortName{Namespace: "shop", Service: "web", Port: 80, Protocol: "TCP", Family: "IPv4"}
	node := func(id uint32, seen *NewConnections) *Top {
		p := TopPort{PortName: web}
		p.ID = id
		for _, address := range []string{"10.0.0.1:1", "10.0.0.2:1"} {
			p.Backends = append(p.Backends, TopBackend{Address: netip.MustParseAddrPort(address)})
		}
		top := &Top{Services: []TopService{{Namespace: "shop", Name: "web", Ports: []TopPort{p}}}}
		if seen != nil {
			top.AddNew(seen)
		}
		return top
	}
	since := time.Unix(1000, 0)
	saw := func(id uint32, backends ...string) *NewConnections {
		seen := new(NewConnections)
		seen.Begin(since)
		for _, b := range backends {
			name := web
			name.ID = id
			seen.Note(&Event{Kind: EventConnection, Service: name, Backend: netip.MustParseAddrPort(b)})
		}
		seen.Note(&Event{Kind: EventLeftOut, LeftOut: 7})
		return seen
	}
	busy := new(NewConnections)
	busy.End(errors.New("no place"))
	first := saw(1, "10.0.0.1:1", "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")
	var all Top
	for _, n := range []*Top{node(4, nil), node(3, busy), node(1, first), node(2, saw(2, "10.0.0.1:1")), node(5, saw(5))} {
		all.Add(n)
	}
	if want := (TopNew{since, 21, "no place"}); all.New == nil || *all.New != want {
		t.Errorf("seen %+v, want %+v", all.New, want)
	}
	for i, want := range []int{3, 1} {
		b := all.Services[0].Ports[0].Backends[i]
		if b.New == nil || *b.New != want || *b.NewShare != float64(want)/4 || b.Share != nil {
			t.Errorf("%s: %+v, want %d new connections of 4", b.Address, b, want)
		}
	}
	if n := len(first.ports[web]); n != 2 {
		t.Errorf("%d backends are counted when one has left, want 2", n)
	}
	if b := node(6, saw(6)).Services[0].Ports[0].Backends[0]; b.New != nil {
		t.Errorf("of a Service without new connections: %+v", b)
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
