package nodemap

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
)

// SetMarks sets what packets of the tunnel carry, and which are accepted: 1 or 2. A mark that
// was and is accepted is so at every moment. It reports whether another one is sent than
// before, and whether anything was not so before.
func (t Table) SetMarks(sent [8]byte, accepted ...[8]byte) (otherSent, changed bool) {
	e := t.maps.Entries.Secret
	want := make([]uint64, len(accepted))
	for i, mark := range accepted {
		want[i] = binary.NativeEndian.Uint64(mark[:])
	}
	fresh := slices.DeleteFunc(slices.Clone(want), func(w uint64) bool { return slices.Contains(e.Accepted[:], w) })
	for i := range e.Accepted {
		if slices.Contains(want, e.Accepted[i]) && !slices.Contains(e.Accepted[:i], e.Accepted[i]) {
			continue
		}
		// Nothing is left to be accepted: one of the others is there twice.
		next := want[0]
		if len(fresh) > 0 {
			next, fresh = fresh[0], fresh[1:]
		}
		if atomic.SwapUint64(&e.Accepted[i], next) != next {
			changed = true
		}
	}
	word := binary.NativeEndian.Uint64(sent[:])
	otherSent = atomic.SwapUint64(&e.Sent, word) != word
	return otherSent, changed || otherSent
}
