package verify

import (
	"errors"
	"slices"
	"testing"
)

// TestFollowed: a finding is one when two looks in a row have it, whatever numbers its text has, and until
// a look that is whole lacks it.
func TestFollowed(t *testing.T) {
	up, side := Finding{Kind: "rp-filter", about: "up"}, Finding{Kind: "rp-filter", about: "side"}
	clock, later := Finding{Kind: "clock", What: "11s ahead"}, Finding{Kind: "clock", What: "12s ahead"}
	failed := errors.New("part of it cannot be read")
	type look struct {
		found []Finding
		err   error
		open  bool
		told  []string // kind and what it is about
	}
	for name, looks := range map[string][]look{
		"nothing": {{}, {}},
		"lasts": {
			{found: []Finding{up}, open: true},
			{found: []Finding{up}, told: []string{"rp-filter up"}},
			{found: []Finding{up}, told: []string{"rp-filter up"}},
			{},
		},
		"passes": {{found: []Finding{up}, open: true}, {}, {found: []Finding{up}, open: true}},
		"another device": {
			{found: []Finding{up}, open: true},
			{found: []Finding{side, up}, open: true, told: []string{"rp-filter up"}},
			{found: []Finding{side}, told: []string{"rp-filter side"}},
		},
		"another text": {{found: []Finding{clock}, open: true}, {found: []Finding{later}, told: []string{"clock "}}, {found: []Finding{clock}, told: []string{"clock "}}},
		"cannot be read": {
			{found: []Finding{up}, open: true},
			{found: []Finding{up}, err: failed, told: []string{"rp-filter up"}},
			{err: failed, told: []string{"rp-filter up"}},
			{},
		},
	} {
		var f followed
		for i, l := range looks {
			open := f.see(slices.Clone(l.found), l.err)
			var told []string
			for _, n := range f.told {
				told = append(told, n.Kind+" "+n.about)
			}
			if open != l.open || !slices.Equal(told, l.told) {
				t.Errorf("%s, look %d: told %q, open %t; want %q, %t", name, i+1, told, open, l.told, l.open)
			}
		}
	}
}
