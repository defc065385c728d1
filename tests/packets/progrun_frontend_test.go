package packets_test

import (
	"net/netip"
	"slices"
	"testing"
)

// stray is at the other end of the uplink, and no address of a Service.
var stray = map[byte]netip.AddrPort{
	4: netip.MustParseAddrPort("198.51.100.9:80"),
	6: netip.MustParseAddrPort("[2001:db8:9::9]:80"),
}

// TestFrontendOfAnotherKey: a program ignores a frontend's value that belongs to another key. The
// kernel may reuse the memory of a deleted frontend between lookup and read; here the keys have other
// frontends' values, and their bits in the filter are set.
func TestFrontendOfAnotherKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.host.ServeBackends()
	for _, at := range stray {
		b.host.Outside.AddAddr("node", netip.PrefixFrom(at.Addr(), at.Addr().BitLen()).String())
		b.host.Outside.ServeTCP(at)
		b.host.Outside.ServeUDP(at)
	}
	misplaceFrontends(t, b)
	for name, f := range requests() {
		f.to = stray[familyOf(f)]
		b.wantUntouched(t, name, f.bytes())
		f.to = virtual[familyOf(f)]
		if verdict, out := b.run(t, "bl_ingress", f.bytes()); verdict != passes || slices.Equal(out, f.bytes()) {
			t.Errorf("%s to its own key: verdict %d, and the packet is as it was: %v", name, int32(verdict), slices.Equal(out, f.bytes()))
		}
	}
	for _, network := range networks {
		family := network[3] - '0'
		for to, want := range map[netip.AddrPort]netip.AddrPort{stray[family]: stray[family], virtual[family]: backend[family]} {
			if got, err := b.host.Reach(network, to); got != want || err != nil {
				t.Errorf("%s to %s reaches %v, %v, want %s", network, to, got, err, want)
			}
		}
	}
}

// misplaceFrontends puts the values of the Service's frontends under keys with the addresses of
// stray too, those that refuse other ports among them, and sets all bits of the filter.
func misplaceFrontends(t *testing.T, b *bench) {
	t.Helper()
	frontends := pinned(t, b.host.BPFFS, "bl_frontend")
	var keys, values [][]byte
	var key, value []byte
	entries := frontends.Iterate()
	for entries.Next(&key, &value) {
		keys, values = append(keys, slices.Clone(key)), append(values, slices.Clone(value))
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	// Of each family: TCP, UDP, and all other ports.
	if want := 2 * 3; len(keys) != want {
		t.Fatalf("there are %d frontends, want %d", len(keys), want)
	}
	for i, key := range keys {
		for family, at := range virtual {
			if addr := at.Addr().As16(); slices.Equal(key[:16], addr[:]) {
				addr = stray[family].Addr().As16()
				copy(key, addr[:])
				break
			}
		}
		if err := frontends.Put(key, values[i]); err != nil {
			t.Fatal(err)
		}
	}
	filter := b.maps.Entries.Filter
	for i := range filter.Word {
		filter.Word[i] = ^uint64(0)
	}
}
