package statusmap

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Unapplied is a Service that could not be written in full.
type Unapplied struct {
	Service model.Name
	Error   string // its beginning
	Since   time.Time
	Next    time.Time // when it is tried again
	Tries   uint32
}

func unappliedKey(service model.Name) (key bpf.SockBlUnappliedKey) {
	bpf.PutString(key.Namespace[:], service.Namespace)
	bpf.PutString(key.Name[:], service.Name)
	return key
}

// PutUnapplied notes a Service that could not be applied in full. Beyond 1,024 of them none is
// noted: their number, in [Agent], counts all.
func (t Table) PutUnapplied(u Unapplied) error {
	key := unappliedKey(u.Service)
	value := bpf.SockBlUnappliedEntry{Since: uint64(u.Since.UnixNano()), Next: uint64(u.Next.UnixNano()), Tries: u.Tries}
	bpf.PutString(value.Error[:], u.Error)
	if err := bpfmap.Put(t.maps.BlUnapplied, &key, &value); !errors.Is(err, tables.ErrFull) {
		return err
	}
	return nil
}

// DeleteUnapplied notes that a Service has been applied in full.
func (t Table) DeleteUnapplied(service model.Name) error {
	key := unappliedKey(service)
	return bpfmap.Remove(t.maps.BlUnapplied, &key)
}

// Unapplied returns the Services that could not be applied in full, by name.
func (t Table) Unapplied() ([]Unapplied, error) {
	var list []Unapplied
	err := bpfmap.Each(t.maps.BlUnapplied, func(key *bpf.SockBlUnappliedKey, value *bpf.SockBlUnappliedEntry) {
		list = append(list, Unapplied{
			Service: model.Name{Namespace: bpf.StringOf(key.Namespace[:]), Name: bpf.StringOf(key.Name[:])},
			Error:   bpf.StringOf(value.Error[:]),
			Since:   time.Unix(0, int64(value.Since)).UTC(),
			Next:    time.Unix(0, int64(value.Next)).UTC(),
			Tries:   value.Tries,
		})
	})
	slices.SortFunc(list, func(a, b Unapplied) int {
		return cmp.Or(cmp.Compare(a.Service.Namespace, b.Service.Namespace), cmp.Compare(a.Service.Name, b.Service.Name))
	})
	return list, err
}

// ForgetUnapplied forgets what a former agent could not apply.
func (t Table) ForgetUnapplied() error {
	list, err := t.Unapplied()
	for i := range list {
		err = errors.Join(err, t.DeleteUnapplied(list[i].Service))
	}
	return err
}
