package bpfmap

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/model"
)

// Unapplied is a Service of which something could not be written.
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
func (m *Maps) PutUnapplied(u Unapplied) error {
	key := unappliedKey(u.Service)
	value := bpf.SockBlUnappliedEntry{Since: uint64(u.Since.UnixNano()), Next: uint64(u.Next.UnixNano()), Tries: u.Tries}
	bpf.PutString(value.Error[:], u.Error)
	if err := m.BlUnapplied.Put(&key, &value); err != nil && !noRoom(err) {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlUnapplied, err)
	}
	return nil
}

// DeleteUnapplied notes that a Service has been applied in full.
func (m *Maps) DeleteUnapplied(service model.Name) error {
	key := unappliedKey(service)
	if err := m.BlUnapplied.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlUnapplied, err)
	}
	return nil
}

// Unapplied returns the Services that could not be applied in full, by name.
func (m *Maps) Unapplied() ([]Unapplied, error) {
	var list []Unapplied
	err := Each(m.BlUnapplied, func(key *bpf.SockBlUnappliedKey, value *bpf.SockBlUnappliedEntry) {
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
func (m *Maps) ForgetUnapplied() error {
	list, err := m.Unapplied()
	for i := range list {
		err = errors.Join(err, m.DeleteUnapplied(list[i].Service))
	}
	return err
}
