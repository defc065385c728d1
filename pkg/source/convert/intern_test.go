package convert

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/beeline-lb/beeline/pkg/model"
)

// slicesOf returns two equal slices whose strings share no memory.
func slicesOf() [2]*model.Slice {
	var out [2]*model.Slice
	for i := range out {
		out[i] = &model.Slice{
			Name:  model.Name{Namespace: strings.Clone("ns"), Name: fmt.Sprint("s", i)},
			Ports: []model.SlicePort{{Name: strings.Clone("http")}},
			Endpoints: []model.Endpoint{{
				NodeName: strings.Clone("n1"), Zone: strings.Clone("z1"),
				ZoneHints: []string{strings.Clone("z1")},
			}},
		}
	}
	return out
}

func TestInternSharesStringsOfSlices(t *testing.T) {
	var in Interner
	s := slicesOf()
	for _, s := range s {
		in.Slice(s)
	}
	pairs := map[string][2]string{
		"namespace": {s[0].Name.Namespace, s[1].Name.Namespace},
		"port":      {s[0].Ports[0].Name, s[1].Ports[0].Name},
		"node":      {s[0].Endpoints[0].NodeName, s[1].Endpoints[0].NodeName},
		"zone hint": {s[0].Endpoints[0].Zone, s[1].Endpoints[0].ZoneHints[0]},
	}
	for what, p := range pairs {
		if p[0] != p[1] || unsafe.StringData(p[0]) != unsafe.StringData(p[1]) {
			t.Errorf("%s: %q and %q are two strings", what, p[0], p[1])
		}
	}
}

func TestInternIsBounded(t *testing.T) {
	var in Interner
	for i := range 3 * internLimit {
		if v := fmt.Sprint(i); in.String(v) != v {
			t.Fatalf("interned %q as another string", v)
		}
	}
	if len(in) > internLimit {
		t.Errorf("%d strings kept, want at most %d", len(in), internLimit)
	}
	long := strings.Repeat("z", internLongest+1)
	if v := in.String(long); v != long {
		t.Errorf("a long string is %q", v)
	}
	for v := range in {
		if len(v) > internLongest {
			t.Errorf("a string of %d bytes is kept", len(v))
		}
	}
}
