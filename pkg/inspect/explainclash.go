package inspect

import (
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// ExplainedClash is a Service that wants a frontend that another Service has.
type ExplainedClash struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Kind      string `json:"kind"` // of the address, to that Service
}

// clashKinds are the kinds of frontends that two Services may want.
var clashKinds = []tables.FrontendKind{
	tables.FrontendClusterIP, tables.FrontendNodePort, tables.FrontendExternalIP, tables.FrontendLoadBalancer,
}

// clashKind returns as what a Service wants a frontend that owner has, by the error that is noted of
// it; false where it does not want it.
func clashKind(noted string, key tables.FrontendKey, owner model.Name) (tables.FrontendKind, bool) {
	if !strings.Contains(noted, key.String()) {
		return 0, false
	}
	for _, kind := range clashKinds {
		if strings.Contains(noted, (&tables.ClashError{Key: key, Kind: kind, Owner: owner}).Error()) {
			return kind, true
		}
	}
	return 0, false
}

// clashes tells which other Services want the frontend that was found.
func (x *Explanation) clashes(d *Datapath) error {
	protocol, err := model.ParseProtocol(x.Protocol)
	if err != nil || x.Frontend == nil {
		return err
	}
	key, _ := x.frontendKey(protocol)
	owner := x.reading.Names[x.Service.ID].Port.Service
	unapplied, err := statusmap.New(d.maps).Unapplied()
	for i := range unapplied {
		u := &unapplied[i]
		if kind, ok := clashKind(u.Error, key, owner); ok {
			x.Clashes = append(x.Clashes, ExplainedClash{u.Service.Namespace, u.Service.Name, kind.String()})
			x.say("address clash", "%s wants %s as %s, too, and goes without it, for %s has it", u.Service, key, kind, owner)
		}
	}
	return err
}

// lost returns the frontends that a Service wants and other Services have, in order.
func (r *reading) lost(s *Service) []tables.FrontendKey {
	if s.Unapplied == nil {
		return nil
	}
	var keys []tables.FrontendKey
	for key, f := range r.Frontends {
		if _, ok := clashKind(s.Unapplied.Error, key, r.Names[f.Service].Port.Service); ok {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, tables.FrontendKey.Compare)
	return keys
}
