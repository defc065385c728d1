package tables

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/beeline-lb/beeline/pkg/policy"
)

// putSet writes the slots of a set that differs from the present one, and
// returns the set with the members it got: a part of them when there is no room
// for all, the present ones when it could not be written.
func (t *Tables) putSet(u *unit, have Set, haveMembers []uint32, want policy.Set) (Set, []uint32, error) {
	if want.Kind != policy.Backends {
		return Set{Kind: want.Kind}, nil, nil
	}
	members := u.members(want)
	if len(members) == 0 {
		return Set{Kind: policy.Reject}, nil, nil
	}
	if have.Kind == policy.Backends && slices.Equal(haveMembers, members) {
		return have, haveMembers, nil
	}
	r, err := t.allocateSlots(members)
	if errors.Is(err, ErrFull) && r.count == 0 {
		return Set{Kind: policy.Reject}, nil, err
	}
	if r.count == 0 {
		return have, haveMembers, err
	}
	members = members[:r.count]
	if putErr := t.store.PutSlots(r.first, members); putErr != nil {
		t.slots.put(r)
		return have, haveMembers, errors.Join(err, putErr)
	}
	return Set{policy.Backends, r.first, r.count}, members, err
}

// allocateSlots returns a run for as many of the members as there is room for.
func (t *Tables) allocateSlots(members []uint32) (run, error) {
	all := uint32(len(members))
	if r, ok := t.slots.get(all); ok {
		return r, nil
	}
	if err := t.reclaim(); err != nil {
		return run{}, err
	}
	if r, ok := t.slots.get(all); ok {
		return r, nil
	}
	full := t.store.Limits().Slots.Full()
	for count := uint32(1) << bits.Len32(all-1) / 2; count > 0; count /= 2 {
		if r, ok := t.slots.get(count); ok {
			return r, fmt.Errorf("%d of %d endpoints are not used: %w", all-count, all, full)
		}
	}
	return run{}, fmt.Errorf("no endpoint is used: %w", full)
}

// dropSet retires the slots of old unless kept has them too.
func (t *Tables) dropSet(old, kept Set) {
	if old.Kind == policy.Backends && old != kept {
		t.retired.slots = append(t.retired.slots, run{old.First, old.Count})
	}
}
