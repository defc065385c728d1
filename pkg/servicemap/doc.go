// Package servicemap owns the entries of Services in the maps: Service ports, backends, slots,
// frontends, source ranges, Service CIDRs and NodePort addresses, and what follows from them: the
// filter of frontends, the aggregate prefix, the endpoints on this node.
//
// [Store] implements [github.com/beeline-lb/beeline/pkg/tables.Store]; [Table] reads.
package servicemap

import (
	"errors"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Table reads the Services of some maps.
type Table struct{ maps *bpfmap.Maps }

// New returns the Services of the maps.
func New(m *bpfmap.Maps) Table { return Table{m} }

// Store writes them. There is one for the maps.
type Store struct {
	Table
	nodemap.Store
	limits    tables.Limits
	filter    *filter
	endpoints *endpoints
}

var (
	_ tables.Store  = (*Store)(nil)
	_ tables.Stored = (*Store)(nil)
)

// Open returns what writes to maps that were not opened for reading, and corrects what follows
// from the entries that they hold.
func Open(m *bpfmap.Maps) (*Store, error) {
	s := &Store{Table: New(m), Store: nodemap.NewStore(m), limits: New(m).Limits()}
	var err error
	if s.filter, err = openFilter(m); err != nil {
		return nil, err
	}
	if s.endpoints, err = openEndpoints(m); err != nil {
		return nil, err
	}
	if err := errors.Join(writeAggregate(m), devicemap.New(m).WriteHairpin()); err != nil {
		return nil, err
	}
	return s, nil
}

// Limits returns how far the tables may grow. It is read once.
func (s *Store) Limits() tables.Limits { return s.limits }
