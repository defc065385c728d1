package policy

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

func TestLocalReady(t *testing.T) {
	node := &model.LocalNode{Name: "here"}
	on := func(nodeName, addr string, ready, terminating bool) model.Endpoint {
		return model.Endpoint{
			Addr: netip.MustParseAddr(addr), NodeName: nodeName,
			Ready: ready, Serving: true, Terminating: terminating,
		}
	}
	of := func(family model.Family, ports string, endpoints ...model.Endpoint) *model.Slice {
		s := &model.Slice{Family: family, Endpoints: endpoints}
		for _, name := range ports {
			s.Ports = append(s.Ports, model.SlicePort{Name: string(name), Protocol: model.TCP, Port: uint16(name)})
		}
		return s
	}
	for _, c := range []struct {
		name   string
		want   int
		slices []*model.Slice
	}{
		{"no slice", 0, nil},
		{"two here, one elsewhere, one of an unknown place", 2, []*model.Slice{of(model.IPv4, "a",
			on("here", "10.0.0.1", true, false), on("here", "10.0.0.2", true, false),
			on("there", "10.0.0.3", true, false), on("", "10.0.0.4", true, false))}},
		{"two ports are one endpoint", 1, []*model.Slice{of(model.IPv4, "ab", on("here", "10.0.0.1", true, false))}},
		{"no port is no endpoint", 0, []*model.Slice{of(model.IPv4, "", on("here", "10.0.0.1", true, false))}},
		{"of no weight", 1, []*model.Slice{
			of(model.IPv4, "a", on("here", "10.0.0.1", true, false)),
			{Family: model.IPv4, Weight: new(uint8), Ports: []model.SlicePort{{Name: "a", Protocol: model.TCP, Port: 80}},
				Endpoints: []model.Endpoint{on("here", "10.0.0.2", true, false)}},
		}},
		{"in a zone of no weight", 0, []*model.Slice{of(model.IPv4, "a", model.Endpoint{
			Addr: netip.MustParseAddr("10.0.0.1"), NodeName: "here", Zone: "drained", Ready: true, Serving: true,
		})}},
		{"only terminating", 0, []*model.Slice{of(model.IPv4, "a", on("here", "10.0.0.1", false, true))}},
		{"not ready", 0, []*model.Slice{of(model.IPv4, "a", on("here", "10.0.0.1", false, false))}},
		{"of the other family", 0, []*model.Slice{of(model.IPv6, "a", on("here", "fd00::1", true, false))}},
		{"in two slices", 1, []*model.Slice{
			of(model.IPv4, "a", on("here", "10.0.0.1", true, false)),
			of(model.IPv4, "a", on("here", "10.0.0.1", false, true)),
		}},
		{"the later slice counts", 0, []*model.Slice{
			of(model.IPv4, "a", on("here", "10.0.0.1", true, false)),
			of(model.IPv4, "a", on("here", "10.0.0.1", false, false)),
		}},
		{"the later slice counts, in whatever order its ports are", 0, []*model.Slice{
			of(model.IPv4, "ab", on("here", "10.0.0.1", true, false)),
			of(model.IPv4, "ba", on("here", "10.0.0.1", false, false)),
		}},
		{"at another port it is another endpoint", 1, []*model.Slice{
			of(model.IPv4, "a", on("here", "10.0.0.1", true, false)),
			of(model.IPv4, "b", on("here", "10.0.0.1", false, false)),
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := LocalReady(&model.Service{ZoneWeights: map[string]uint8{"drained": 0}}, model.IPv4, c.slices, node); got != c.want {
				t.Errorf("LocalReady = %d, want %d", got, c.want)
			}
		})
	}
}
