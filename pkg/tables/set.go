package tables

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/beeline-lb/beeline/pkg/policy"
)

// putSet writes the slots of a set that differs from the present one, and
// returns the set with the content it got: a part of it when there is no room
// for all, the present one when it could not be written.
func (t *Tables) putSet(sp *servicePort, have Set, haveContent content, want *wantedSet) (Set, content, error) {
	if want.kind != policy.Backends {
		return Set{Kind: want.kind}, content{}, nil
	}
	c := sp.content(want)
	if len(c.members) == 0 {
		return Set{Kind: policy.Reject}, content{}, nil
	}
	if have.Kind == policy.Backends && c.equal(haveContent) {
		c.sum = haveContent.sum
		return have, c, nil
	}
	slots := sp.slots(c, want)
	c.sum = slotSum(slots)
	if have.Kind == policy.Backends && slices.Equal(slots, haveContent.raw) {
		return have, c, nil
	}
	r, err := t.allocateSlots(uint32(len(slots)), len(slots) == len(c.members))
	if r.count == 0 && errors.Is(err, ErrFull) {
		r, err = t.allocateSome(uint32(len(c.members)), uint32(len(slots)))
		c = content{members: c.members[:r.count]}
		slots = c.members
		c.sum = slotSum(slots)
	}
	if errors.Is(err, ErrFull) && r.count == 0 {
		return Set{Kind: policy.Reject}, content{}, err
	}
	if r.count == 0 {
		return have, haveContent, err
	}
	if putErr := t.store.PutSlots(r.first, slots); putErr != nil {
		t.slots.put(r)
		return have, haveContent, errors.Join(err, putErr)
	}
	return Set{policy.Backends, r.first, r.count}, c, err
}

// allocateSlots returns a run of so many slots; it waits for retired ones when
// there is none. A plain set has one slot for each endpoint.
func (t *Tables) allocateSlots(count uint32, plain bool) (run, error) {
	if r, ok := t.slots.get(count, plain); ok {
		return r, nil
	}
	if err := t.reclaim(); err != nil {
		return run{}, err
	}
	if r, ok := t.slots.get(count, plain); ok {
		return r, nil
	}
	return run{}, t.store.Limits().Slots.Full()
}

// allocateSome returns a run for as many of the endpoints as there is room for, one
// slot each, where there is none for the slots that they should have.
func (t *Tables) allocateSome(all, slots uint32) (run, error) {
	full := t.store.Limits().Slots.Full()
	if all < slots {
		if r, ok := t.slots.get(all, true); ok {
			return r, fmt.Errorf("weights and hashes are not followed, which takes %d slots: %w", slots, full)
		}
	}
	for count := uint32(1) << bits.Len32(all-1) / 2; count > 0; count /= 2 {
		if r, ok := t.slots.get(count, true); ok {
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
