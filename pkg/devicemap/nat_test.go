package devicemap

import (
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestNAT: network namespaces are read back, and those that are taken out are gone.
func TestNAT(t *testing.T) {
	m := New(maptest.New(t, maptest.Small))
	for cookie, ifindexes := range map[uint64][]int{7: nil, 8: {9, 5}, 9: {1, 2, 3, 4}} {
		if err := m.PutNAT(cookie, ifindexes); err != nil {
			t.Fatal(err)
		}
	}
	list, err := m.NAT()
	if err != nil || len(list) != 3 || list[7] != nil || !slices.Equal(list[8], []int{5, 9}) || !slices.Equal(list[9], []int{1, 2, 3, 4}) {
		t.Errorf("%v, %v", list, err)
	}
	if err := m.DeleteNAT(8); err != nil {
		t.Fatal(err)
	}
	if list, err := m.NAT(); err != nil || len(list) != 2 {
		t.Errorf("without one of them: %v, %v", list, err)
	}
}
