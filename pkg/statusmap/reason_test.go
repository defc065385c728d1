package statusmap

import (
	"testing"

	"github.com/beeline-lb/beeline/tests/maptest"
)

func TestReasons(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	for i := range reasons {
		must(t, m.BlCounter.Put(uint32(i), perCPU(t, uint64(i))))
	}
	list, err := New(m).Reasons()
	if err != nil {
		t.Fatal(err)
	}
	cpus := uint64(len(perCPU(t, 0)))
	for i, want := range reasons {
		if want.Name == "" {
			continue // no event
		}
		if len(list) == 0 || list[0].Name != want.Name || list[0].Count != uint64(i)*cpus {
			t.Fatalf("reason %d: %+v left", i, list)
		}
		list = list[1:]
	}
}
