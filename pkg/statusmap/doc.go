// Package statusmap has what people are shown: what the agent tells of itself, Services that
// could not be applied, counters of the programs, clients with session affinity, and how full
// the maps are.
package statusmap

import "github.com/beeline-lb/beeline/pkg/bpfmap"

// Table is what some maps hold for people.
type Table struct{ maps *bpfmap.Maps }

// New returns what the maps hold for people.
func New(m *bpfmap.Maps) Table { return Table{m} }
