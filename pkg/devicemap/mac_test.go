package devicemap

import (
	"maps"
	"testing"

	"github.com/beeline-lb/beeline/tests/maptest"
)

func TestMACsAreReplaced(t *testing.T) {
	m := New(maptest.New(t, maptest.Small))
	for _, want := range []map[int]MAC{
		{2: {2, 0, 0, 0, 0, 1}, 3: {}, MACPlaces + 1: {2, 0, 0, 0, 0, 2}},
		{2: {2, 0, 0, 0, 0, 3}, 2*MACPlaces + 3: {2, 0, 0, 0, 0, 1}},
		{},
	} {
		if err := m.SetMACs(want); err != nil {
			t.Fatal(err)
		}
		if got, err := m.MACs(); err != nil || !maps.Equal(got, want) {
			t.Errorf("MAC addresses are %v, want %v: %v", got, want, err)
		}
	}
}
