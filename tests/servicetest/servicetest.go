// Package servicetest writes Services into the maps of tests.
package servicetest

import (
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
)

// Open returns what writes Services into the maps.
func Open(t testing.TB, m *bpfmap.Maps) *servicemap.Store {
	t.Helper()
	s, err := servicemap.Open(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
