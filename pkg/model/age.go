package model

import (
	"cmp"
	"time"
)

// Age orders Services that want the same: the one that was created first comes first, as the Gateway
// API has it.
type Age struct {
	Created time.Time // zero is unknown
	Name    Name
}

// Compare orders by when they were created, one of which that is unknown last, then by name.
func (a Age) Compare(o Age) int {
	known := func(t time.Time) int {
		if t.IsZero() {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(known(a.Created), known(o.Created)), a.Created.Compare(o.Created), a.Name.Compare(o.Name))
}
