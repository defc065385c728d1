package tables

import (
	"cmp"
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
			others, err := t.putFrontend(svc, desired, f, sp.id)
			affected = append(affected, others...)
			errs = append(errs, err)
		}
	}
	for _, key := range sortedKeys(svc.frontends) {
		if _, ok := wanted[key]; ok {
			continue
		}
		next, err := t.dropFrontend(svc, key)
		affected = append(affected, next...)
		errs = append(errs, err)
	}
	for key := range svc.claims {
		if _, ok := wanted[key]; !ok {
			affected = append(affected, t.withdraw(svc, key)...)
		}
	}
	return affected, errors.Join(errs...)
}

// putFrontend makes a key lead to a Service port, unless another Service has it. affected is
// the Service that lost it to a claim of higher precedence, or may take it from one that is lower now.
func (t *Tables) putFrontend(svc *service, desired *Desired, want DesiredFrontend, id uint32) (affected []model.Name, err error) {
	name := desired.Name
	entry := Frontend{Service: id, Kind: want.Kind, Flags: want.Flags}
	f := t.frontends[want.Key]
	if f != nil && f.owner != name && f.owner != nobody && precedence(entry) <= precedence(f.Frontend) {
		t.await(svc, want.Key, claim{model.Age{Created: desired.Created, Name: name}, precedence(entry)})
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
			affected = append(affected, f.owner)
		}
		delete(t.owned[f.owner].frontends, want.Key)
		f.owner = name
	}
	lowered := precedence(entry) < precedence(f.Frontend)
	f.Frontend = entry
	svc.frontends[want.Key] = struct{}{}
	t.forget(svc, want.Key)
	if list := t.waiting[want.Key]; lowered && len(list) > 0 && list[0].precedence > precedence(entry) {
		affected = append(affected, list[0].Name)
	}
	return affected, nil
}

// dropFrontend takes out a frontend of the Service and returns the Service that is to have it next.
func (t *Tables) dropFrontend(svc *service, key FrontendKey) (next []model.Name, err error) {
	if err := t.store.DeleteFrontend(key); err != nil {
		return nil, fmt.Errorf("frontend %s: %w", key, err)
	}
	delete(t.frontends, key)
	delete(svc.frontends, key)
	return t.vacant(key), nil
}

// claim is that of a Service that waits for a frontend.
type claim struct {
	model.Age
	precedence int
}

// compare orders the claims to one frontend: the one that is to have it first.
func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(o.precedence, c.precedence), c.Age.Compare(o.Age))
}

// await notes that a Service waits for a frontend that another one has.
func (t *Tables) await(svc *service, key FrontendKey, c claim) {
	if before, waits := svc.claims[key]; before == c && waits {
		return
	}
	t.forget(svc, key)
	list := t.waiting[key]
	place, _ := slices.BinarySearchFunc(list, c, claim.compare)
	t.waiting[key] = slices.Insert(list, place, c)
	svc.claims[key] = c
}

// withdraw forgets that a Service waits for a frontend. It returns the Service that is to have it, where
// nobody has.
func (t *Tables) withdraw(svc *service, key FrontendKey) (next []model.Name) {
	if !t.forget(svc, key) {
		return nil
	}
	return t.vacant(key)
}

// forget takes out the claim of a Service to a frontend; false: there is none.
func (t *Tables) forget(svc *service, key FrontendKey) bool {
	c, ok := svc.claims[key]
	if !ok {
		return false
	}
	delete(svc.claims, key)
	list := t.waiting[key]
	place, _ := slices.BinarySearchFunc(list, c, claim.compare)
	if t.waiting[key] = slices.Delete(list, place, place+1); len(t.waiting[key]) == 0 {
		delete(t.waiting, key)
	}
	return true
}

// vacant returns the first Service that waits for a frontend, if nobody has it. The others need not be
// told: they are when that one does not want it any more, or gives it up.
func (t *Tables) vacant(key FrontendKey) []model.Name {
	if list := t.waiting[key]; t.frontends[key] == nil && len(list) > 0 {
		return []model.Name{list[0].Name}
	}
	return nil
}
