package devicemap

import (
	"maps"
	"testing"

	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestSandboxes: devices are read back, and those that are taken out are gone.
func TestSandboxes(t *testing.T) {
	m := NewSandboxes(maptest.New(t, maptest.Small))
	for _, ifindex := range []int{7, 9} {
		if err := m.Add(ifindex); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := m.List(); err != nil || !maps.Equal(list, map[int]bool{7: true, 9: true}) {
		t.Errorf("%v, %v", list, err)
	}
	if err := m.Remove(7); err != nil {
		t.Fatal(err)
	}
	if list, err := m.List(); err != nil || !maps.Equal(list, map[int]bool{9: true}) {
		t.Errorf("without one of them: %v, %v", list, err)
	}
}
