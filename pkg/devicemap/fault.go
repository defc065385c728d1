package devicemap

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// faultEntry is a value of the map.
type faultEntry struct {
	Since, Next int64 // ns since the epoch
	Tries       uint32
	Name        [16]int8
	Role        [12]int8
	Error       [208]int8
}

// Fault is a device that could not be attached to, and its role.
type Fault struct {
	Ifindex int // 0: the devices could not be looked at
	Name    string
	Role    string
	Error   string
	Tries   int
	Since   time.Time
	Next    time.Time // when it is tried again
}

// Faults returns what SetFaults has written last, by name.
func (t Table) Faults() ([]Fault, error) {
	var list []Fault
	err := bpfmap.Each(t.maps.DeviceFault, func(ifindex *uint32, e *faultEntry) {
		list = append(list, Fault{
			Ifindex: int(*ifindex), Name: bpf.StringOf(e.Name[:]), Role: bpf.StringOf(e.Role[:]), Error: bpf.StringOf(e.Error[:]),
			Tries: int(e.Tries), Since: time.Unix(0, e.Since), Next: time.Unix(0, e.Next),
		})
	})
	slices.SortFunc(list, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Ifindex, b.Ifindex))
	})
	return list, err
}

// SetFaults replaces the faults by the first of these, as many as there is room for.
func (t Table) SetFaults(faults []Fault) error {
	faults = faults[:min(len(faults), int(t.maps.DeviceFault.MaxEntries()))]
	former, err := t.Faults()
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range former {
		if !slices.ContainsFunc(faults, func(now Fault) bool { return now.Ifindex == f.Ifindex }) {
			errs = append(errs, bpfmap.Remove(t.maps.DeviceFault, uint32(f.Ifindex)))
		}
	}
	for _, f := range faults {
		e := faultEntry{Since: f.Since.UnixNano(), Next: f.Next.UnixNano(), Tries: uint32(f.Tries)}
		bpf.PutString(e.Name[:], f.Name)
		bpf.PutString(e.Role[:], f.Role)
		bpf.PutString(e.Error[:], f.Error)
		errs = append(errs, bpfmap.Put(t.maps.DeviceFault, uint32(f.Ifindex), &e))
	}
	return errors.Join(errs...)
}
