package web

import (
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// reading returns the n-th reading of a node whose Services have so many connections a second.
func reading(n int, connections map[string]float64) *inspect.Top {
	top := &inspect.Top{Time: begin.Add(time.Duration(2*n) * time.Second)}
	if n > 0 {
		top.Seconds = 2
	}
	for name, rate := range connections {
		s := inspect.TopService{Namespace: "shop", Name: name, Rates: inspect.Rates{ConnectionsPerSecond: rate}}
		top.Services = append(top.Services, s)
	}
	return top
}

// TestHistory: a Service's rates lie beside those of the node, and one that was idle all the time
// takes no memory.
func TestHistory(t *testing.T) {
	var h history
	web := model.Name{Namespace: "shop", Name: "web"}
	h.add(reading(0, map[string]float64{"web": 0}))
	if len(h.node) != 0 || h.services[web] != nil {
		t.Error("the first reading has rates")
	}
	h.add(reading(1, map[string]float64{"web": 10.04, "idle": 0}))
	h.add(reading(2, map[string]float64{"web": 0, "other": 7}))
	h.add(reading(3, map[string]float64{"web": 25, "other": 7, "rare": 5}))
	if got, _ := h.of(web); !slices.Equal(got, []float32{10, 0, 25}) {
		t.Errorf("shop/web had %v", got)
	}
	if len(h.node) != 3 || h.node[2].Connections != 37 || len(h.services) != 3 {
		t.Errorf("the node had %+v, %d Services", h.node, len(h.services))
	}
	for n := 4; n < 4+points; n++ {
		rates := map[string]float64{"other": float64(n)}
		if n == 100 {
			rates["rare"] = 6
		}
		h.add(reading(n, rates))
	}
	rare, _ := h.of(model.Name{Namespace: "shop", Name: "rare"})
	if i := slices.IndexFunc(rare, func(rate float32) bool { return rate != 0 }); i != 100-4 || rare[i] != 6 || slices.Max(rare[i+1:]) != 0 {
		t.Errorf("shop/rare had %v", rare)
	}
	got, _ := h.of(model.Name{Namespace: "shop", Name: "other"})
	if len(h.node) != points || len(got) != points || got[0] != 4 || got[points-1] != points+3 {
		t.Errorf("%d readings of the node, %d of shop/other: %v", len(h.node), len(got), got)
	}
	if h.services[web] != nil {
		t.Error("shop/web has been idle and is kept")
	}
}

// TestRefusals: counts add up, the latest come first, and what is served no more is forgotten.
func TestRefusals(t *testing.T) {
	port := func(id uint32, perSecond float64) inspect.TopService {
		return inspect.TopService{Ports: []inspect.TopPort{{
			PortName: inspect.PortName{ID: id}, Rates: inspect.Rates{RefusedPerSecond: perSecond},
		}}}
	}
	var r refusals
	for n, services := range [][]inspect.TopService{
		{port(1, 0), port(2, 0), port(3, 0)},
		{port(1, 2), port(2, 1), port(3, 5)},
		{port(1, 0.5), port(2, 0), port(3, 0)},
		{port(1, 0), port(2, 0)},
	} {
		top := reading(n, nil)
		top.Services = services
		top.Reasons = []inspect.TopReason{{Reason: "no_endpoint", PerSecond: float64(3 - n)}, {Reason: "source_range"}}
		if n == 0 {
			top.Reasons[0].PerSecond = 0
		}
		r.add(top)
	}
	v := r.view()
	if len(v.Ports) != 2 || v.Ports[0].ID != 1 || v.Ports[0].Count != 5 || !v.Ports[0].Last.Equal(begin.Add(4*time.Second)) ||
		v.Ports[1].ID != 2 || v.Ports[1].Count != 2 {
		t.Errorf("Services: %+v", v.Ports)
	}
	if len(v.Reasons) != 1 || v.Reasons[0].Count != 6 || v.Reasons[0].PerSecond != 0 || !v.Since.Equal(begin) {
		t.Errorf("reasons: %+v, since %s", v.Reasons, v.Since)
	}
}
