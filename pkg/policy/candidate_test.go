package policy_test

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// TestCandidates: each endpoint that is left out has its reason, and those are left out that are in
// no set of Select, or have no weight.
func TestCandidates(t *testing.T) {
	node := &model.LocalNode{Name: "here", Zone: "a"}
	none := uint8(0)
	at := func(last byte, change func(*model.Endpoint)) model.Endpoint {
		e := model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, last}), NodeName: "here", Ready: true, Serving: true}
		change(&e)
		return e
	}
	ready := func(*model.Endpoint) {}
	notReady := func(e *model.Endpoint) { e.Ready, e.Serving = false, false }
	draining := func(e *model.Endpoint) { e.Ready, e.Terminating = false, true }
	gone := func(e *model.Endpoint) { e.Ready, e.Serving, e.Terminating = false, false, true }
	there := func(e *model.Endpoint) { e.NodeName = "there" }
	hinted := func(zone string) func(*model.Endpoint) {
		return func(e *model.Endpoint) { e.ZoneHints = []string{zone} }
	}
	slice := func(weight *uint8, endpoints ...model.Endpoint) *model.Slice {
		return &model.Slice{Family: 4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}, Endpoints: endpoints, Weight: weight}
	}
	for name, tt := range map[string]struct {
		slice          *model.Slice
		cluster, local []string // why not
	}{
		"ready":     {slice(nil, at(1, ready), at(2, there)), []string{"", ""}, []string{"", "on another node, there"}},
		"not ready": {slice(nil, at(1, notReady), at(2, ready)), []string{"not ready", ""}, []string{"not ready", ""}},
		"draining": {
			slice(nil, at(1, draining), at(2, ready)),
			[]string{"terminating, and others are ready", ""}, []string{"terminating, and others on this node are ready", ""},
		},
		"draining alone": {slice(nil, at(1, draining), at(2, gone)), []string{"", "terminating, and it does not serve any more"}, []string{"", "terminating, and it does not serve any more"}},
		"hints": {
			slice(nil, at(1, hinted("a")), at(2, hinted("b"))),
			[]string{"", `topology hints give it to zones "b" and nodes ""`}, []string{"", ""},
		},
		"no weight": {slice(&none, at(1, ready)), []string{"its weight is 0"}, []string{"its weight is 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			svc, port := &model.Service{}, model.ServicePort{Protocol: model.TCP, Port: 80}
			list := policy.Candidates(svc, port, 4, []*model.Slice{tt.slice}, node)
			for i, c := range list {
				if c.NotInCluster != tt.cluster[i] || c.NotInLocal != tt.local[i] {
					t.Errorf("%s: %q and %q, want %q and %q", c.AddrPort, c.NotInCluster, c.NotInLocal, tt.cluster[i], tt.local[i])
				}
			}
			if len(list) != len(tt.cluster) {
				t.Errorf("%d endpoints, want %d", len(list), len(tt.cluster))
			}
		})
	}
}
