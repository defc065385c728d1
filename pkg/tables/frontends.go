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

// putFrontend makes a key lead to a Service port, unless another Service has it or waits for it with a
// claim that goes before. affected are the Services that are to take it, or have lost it to this one.
func (t *Tables) putFrontend(svc *service, desired *Desired, want DesiredFrontend, id uint32) (affected []model.Name, err error) {
	name := desired.Name
	entry := Frontend{Service: id, Kind: want.Kind, Flags: want.Flags}
	c := claim{model.Age{Created: desired.Created, Name: name}, precedence(entry)}
	if first := t.before(want.Key, c); first != nobody {
		affected = t.await(svc, want.Key, c)
		if want.Kind != FrontendAddress || want.Flags&RefuseOthers != 0 { // else shared: another Service keeps it for both
			err = &ClashError{want.Key, want.Kind, first}
		}
		return affected, err
	}
	f := t.frontends[want.Key]
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
	if lowered {
		affected = append(affected, t.next(want.Key)...)
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
	return t.next(key), nil
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

// before returns the Service that keeps a frontend from a claim: its owner, or the first of those that wait
// for it.
func (t *Tables) before(key FrontendKey, c claim) model.Name {
	if f := t.frontends[key]; f != nil && f.owner != nobody {
		if f.owner == c.Name {
			return nobody
		}
		if c.precedence <= precedence(f.Frontend) {
			return f.owner
		}
	}
	for _, other := range t.waiting[key] {
		if other.compare(c) >= 0 {
			break
		}
		if other.Name != c.Name { // not what it wanted before
			return other.Name
		}
	}
	return nobody
}

// await notes that a Service waits for a frontend that another one has, or is to have. Where it was the first to
// wait and is not now, it returns the Service that is to have it, if its owner is not.
func (t *Tables) await(svc *service, key FrontendKey, c claim) (next []model.Name) {
	before, waits := svc.claims[key]
	if waits && before == c {
		return nil
	}
	first := waits && t.waiting[key][0] == before
	t.forget(svc, key)
	list := t.waiting[key]
	place, _ := slices.BinarySearchFunc(list, c, claim.compare)
	t.waiting[key] = slices.Insert(list, place, c)
	svc.claims[key] = c
	if !first || place == 0 {
		return nil
	}
	return t.next(key)
}

// withdraw forgets that a Service waits for a frontend. It returns the Service that is to have it, if its
// owner is not.
func (t *Tables) withdraw(svc *service, key FrontendKey) (next []model.Name) {
	if !t.forget(svc, key) {
		return nil
	}
	return t.next(key)
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

// next returns the first Service that waits for a frontend, if nobody has it or the owner's claim is of lower
// precedence. The others need not be told: they are when that one does not want it any more, or gives it up.
// Whoever is applied before it leaves the frontend to it, see [Tables.before].
func (t *Tables) next(key FrontendKey) []model.Name {
	list, f := t.waiting[key], t.frontends[key]
	if len(list) == 0 || f != nil && list[0].precedence <= precedence(f.Frontend) {
		return nil
	}
	return []model.Name{list[0].Name}
}
