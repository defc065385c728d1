// Package statusmap reads and writes the status that beeline and the metrics show: the agent's
// record, Services that could not be applied, counters of the programs, clients with session
// affinity, and how full the maps are.
package statusmap

import "github.com/beeline-lb/beeline/pkg/bpfmap"

// Table is the status in some maps.
type Table struct{ maps *bpfmap.Maps }

// New returns the status in the maps.
func New(m *bpfmap.Maps) Table { return Table{m} }
