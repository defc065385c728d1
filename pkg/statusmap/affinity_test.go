package statusmap

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
	"github.com/beeline-lb/beeline/tests/wait"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestAffinities(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	backend := tables.Backend{AddrPort: netip.MustParseAddrPort("10.1.0.1:80"), Service: 3, State: tables.InCluster, Generation: 2}
	must(t, servicetest.Open(t, m).PutBackend(5, backend))
	now, err := bpf.Clock()
	if err != nil {
		t.Fatal(err)
	}
	entry := bpf.SockBlAffinityEntry{LastUsed: uint64(now - 5*time.Second)}
	entry.Backend.Id, entry.Backend.Generation = 5, 2
	former := entry
	former.Backend.Generation = 1
	client := func(addr string) *bpf.SockBlClientKey {
		return &bpf.SockBlClientKey{Client: bpf.AddrOf(netip.MustParseAddr(addr)), Service: 3}
	}
	must(t, m.BlAffinity.Put(&bpf.SockBlAffinityKey{Netns: 77, Service: 3}, &entry),
		m.BlAffinity.Put(&bpf.SockBlAffinityKey{Netns: 78, Service: 3}, &former),
		m.BlNewClient.Put(client("192.0.2.7"), &former), m.BlNewClient.Put(client("2001:db8::7"), &entry),
		m.BlClient.Put(client("192.0.2.7"), &entry))
	checkAffinities(t, m, "77", "192.0.2.7", "new 2001:db8::7")
	backend.State |= tables.NoNew
	must(t, servicetest.Open(t, m).PutBackend(5, backend))
	checkAffinities(t, m)
	backend.State = tables.Serving // in no set any more
	must(t, servicetest.Open(t, m).PutBackend(5, backend))
	checkAffinities(t, m)
}

// checkAffinities checks that of all entries those of some clients are valid, and that those of new
// ones come last.
func checkAffinities(t *testing.T, m *bpfmap.Maps, valid ...string) {
	t.Helper()
	list, err := New(m).Affinities()
	if err != nil || len(list) != 5 {
		t.Fatalf("%v, %v", list, err)
	}
	var got []string
	for i, a := range list {
		if a.Service != 3 || a.Backend != 5 || a.Idle < 5*time.Second || a.Idle > 5*time.Second+wait.Limit || a.New != (i >= 3) {
			t.Errorf("%d: %+v", i, a)
		}
		name := fmt.Sprint(a.Netns)
		if a.Client.IsValid() {
			name = a.Client.String()
		}
		if a.New {
			name = "new " + name
		}
		if a.Valid {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, valid) {
		t.Errorf("valid are %q, want %q", got, valid)
	}
}
