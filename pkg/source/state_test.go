package source_test

import (
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

// TestState: what was told in parts comes back as one update, and what has changed is known by
// its Service.
func TestState(t *testing.T) {
	s := source.NewState()
	web, dns := model.Name{Namespace: "shop", Name: "web"}, model.Name{Namespace: "shop", Name: "dns"}
	slice := func(name string, service model.Name) *model.Slice {
		return &model.Slice{Name: model.Name{Namespace: "shop", Name: name}, Service: service.Name}
	}
	s.Apply(source.Update{
		PutServices: []*model.Service{{Name: web}, {Name: dns}},
		PutSlices:   []*model.Slice{slice("a", web), slice("b", web)},
		PutNodes:    []*model.Node{{Name: "n1"}, {Name: "n2"}},
		LocalNode:   &model.LocalNode{Name: "n1"},
	})
	before := time.Now()
	changed := func(name model.Name) bool { return !s.Changed(name).Before(before) }
	// The slice goes from one Service to the other.
	s.Apply(source.Update{PutSlices: []*model.Slice{slice("a", dns)}, DeleteSlices: []model.Name{{Namespace: "shop", Name: "none"}}})
	if !changed(web) || !changed(dns) || changed(model.Name{Name: "other"}) {
		t.Errorf("changed: web %t, dns %t, other %t", changed(web), changed(dns), changed(model.Name{Name: "other"}))
	}
	s.Apply(source.Update{DeleteServices: []model.Name{dns}, DeleteSlices: []model.Name{{Namespace: "shop", Name: "b"}}, DeleteNodes: []string{"n2"}})
	if s.Latest().Before(before) {
		t.Error("the latest change is not noted")
	}
	if !changed(model.Name{}) {
		t.Error("a node that is gone concerns no Service")
	}
	u := s.All()
	if len(u.PutServices) != 1 || u.PutServices[0].Name != web || len(u.PutSlices) != 1 || len(u.PutNodes) != 1 || u.LocalNode.Name != "n1" {
		t.Errorf("all is %+v", u)
	}
	select {
	case <-s.Complete():
		t.Error("complete before it was told")
	default:
	}
	s.Synced()
	s.Synced()
	<-s.Complete()
}
