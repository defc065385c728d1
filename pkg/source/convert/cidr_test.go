package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestForeignIPs: a namespace that leaves many Services to other proxies takes no room of others.
func TestForeignIPs(t *testing.T) {
	foreign := make(map[model.Name][]netip.Addr)
	next := netip.MustParseAddr("10.96.0.1")
	add := func(namespace, name string) netip.Addr {
		ip := next
		foreign[model.Name{Namespace: namespace, Name: name}] = []netip.Addr{ip}
		next = next.Next()
		return ip
	}
	var many []netip.Addr
	for i := range 2 * MaxForeignIPs {
		many = append(many, add("many", fmt.Sprintf("%05d", i)))
	}
	dns := add("zone", "dns")
	got := ForeignIPs(foreign)
	if len(got) != MaxForeignIPs || !slices.Contains(got, dns) || !slices.Contains(got, many[MaxForeignIPs-2]) || !slices.IsSortedFunc(got, netip.Addr.Compare) {
		t.Errorf("%d addresses", len(got))
	}
	if again := ForeignIPs(foreign); !slices.Equal(again, got) {
		t.Error("others the second time")
	}
	if got := ForeignIPs(nil); len(got) > 0 {
		t.Errorf("of none: %v", got)
	}
}
