package tables

import (
	"errors"
	"fmt"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// the frontends that a former agent left without a Service have no owner.
var nobody model.Name

// applyFrontends brings the frontends of a Service to the desired state. New ones
// lead to Service ports that are complete.
func (t *Tables) applyFrontends(svc *service, desired *Desired) (affected []model.Name, err error) {
	var errs []error
	wanted := make(map[FrontendKey]struct{})
	for i := range desired.Ports {
		want := &desired.Ports[i]
		sp := t.ports[want.Name.ServicePortName()]
		if sp == nil {
			continue // no id; reported
		}
		for _, f := range want.Frontends {
			if _, twice := wanted[f.Key]; twice {
				continue // an address of two kinds: the first stands, see compilePort
			}
			wanted[f.Key] = struct{}{}
			lost, err := t.putFrontend(svc, desired.Name, f, sp.id)
			affected = append(affected, lost...)
			errs = append(errs, err)
		}
	}
	for _, key := range sortedKeys(svc.frontends) {
		if _, ok := wanted[key]; ok {
			continue
		}
		waiting, err := t.dropFrontend(svc, key)
		affected = append(affected, waiting...)
		errs = append(errs, err)
	}
	for key := range svc.claims {
		if _, ok := wanted[key]; !ok {
			t.withdraw(svc, desired.Name, key)
		}
	}
	return affected, errors.Join(errs...)
}

// putFrontend makes a key lead to a Service port, unless another Service has it. lost is
// the Service that lost it to a claim of higher precedence.
func (t *Tables) putFrontend(svc *service, name model.Name, want DesiredFrontend, id uint32) (lost []model.Name, err error) {
	entry := Frontend{Service: id, Kind: want.Kind, Flags: want.Flags}
	f := t.frontends[want.Key]
	if f != nil && f.owner != name && f.owner != nobody && !hasPrecedence(entry, f.Frontend) {
		if !slices.Contains(f.waiting, name) {
			f.waiting = append(f.waiting, name)
			svc.claims[want.Key] = struct{}{}
		}
		if want.Kind == FrontendAddress && want.Flags&RefuseOthers == 0 {
			return nil, nil // shared: another Service keeps it for both
		}
		return nil, &ClashError{want.Key, want.Kind, f.owner}
	}
	if f == nil || f.Frontend != entry {
		if err := t.store.PutFrontend(want.Key, entry); err != nil {
			return nil, fmt.Errorf("frontend %s: %w", want.Key, err)
		}
	}
	if f == nil {
		f = &frontend{owner: name}
		t.frontends[want.Key] = f
	}
	if f.owner != name {
		if f.owner != nobody {
			lost = append(lost, f.owner)
		}
		delete(t.owned[f.owner].frontends, want.Key)
		f.owner = name
	}
	f.Frontend = entry
	svc.frontends[want.Key] = struct{}{}
	t.withdraw(svc, name, want.Key)
	return lost, nil
}

// dropFrontend takes out a frontend of the Service and returns the Services that wait for it.
func (t *Tables) dropFrontend(svc *service, key FrontendKey) (waiting []model.Name, err error) {
	if err := t.store.DeleteFrontend(key); err != nil {
		return nil, fmt.Errorf("frontend %s: %w", key, err)
	}
	waiting = t.frontends[key].waiting
	delete(t.frontends, key)
	delete(svc.frontends, key)
	return waiting, nil
}

// withdraw forgets that a Service waits for a frontend.
func (t *Tables) withdraw(svc *service, name model.Name, key FrontendKey) {
	if _, ok := svc.claims[key]; !ok {
		return
	}
	delete(svc.claims, key)
	if f := t.frontends[key]; f != nil {
		f.waiting = slices.DeleteFunc(f.waiting, func(n model.Name) bool { return n == name })
	}
}
