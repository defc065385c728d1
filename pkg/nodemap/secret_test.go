package nodemap

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestMarks: what is to be accepted is, and nothing else; what is kept stays where it is.
func TestMarks(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	mark := func(i uint64) (b [8]byte) {
		binary.NativeEndian.PutUint64(b[:], i)
		return b
	}
	for _, step := range []struct {
		accepted []uint64
		want     [2]uint64
		other    bool // is sent than before
	}{
		{[]uint64{0}, [2]uint64{0, 0}, false},
		{[]uint64{7}, [2]uint64{7, 7}, true},
		{[]uint64{7, 8}, [2]uint64{7, 8}, false},
		{[]uint64{8, 7}, [2]uint64{7, 8}, true},
		{[]uint64{8}, [2]uint64{8, 8}, false},
		{[]uint64{9, 8}, [2]uint64{8, 9}, true},
		{[]uint64{5, 6}, [2]uint64{5, 6}, true},
		{[]uint64{0}, [2]uint64{0, 0}, true},
	} {
		var accepted [][8]byte
		for _, i := range step.accepted {
			accepted = append(accepted, mark(i))
		}
		before := *m.Entries.Secret
		otherSent, changed := New(m).SetMarks(accepted[0], accepted...)
		got := m.Entries.Secret
		slices.Sort(step.want[:])
		have := got.Accepted
		slices.Sort(have[:])
		if have != step.want || got.Sent != step.accepted[0] || otherSent != step.other || changed != (*got != before) {
			t.Errorf("%v gives %v, %v is sent, another one %t, changed %t", step.accepted, got.Accepted, got.Sent, otherSent, changed)
		}
	}
}
