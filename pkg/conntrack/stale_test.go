package conntrack_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestDeleteStale: of the connections that a rule translates, those of UDP are asked about, and the stale
// ones are deleted; what is not translated is nobody's to delete.
func TestDeleteStale(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	lab.Need(t, "nft", "ip")
	n := lab.NewNamespace(t)
	n.AddAddr("lo", "192.0.2.1/24")
	n.AddAddr("lo", "2001:db8::1/64")
	if err := n.Run(deleteStale); err != nil {
		t.Error(err)
	}
}

func deleteStale() error {
	for _, command := range [][]string{
		{"ip", "route", "add", "10.96.0.0/16", "dev", "lo"},
		{"ip", "-6", "route", "add", "fd96::/112", "dev", "lo"},
		{"nft", `table ip t { chain output { type nat hook output priority -100; ip daddr 10.96.0.1 meta l4proto {tcp, udp} dnat to 192.0.2.1:5353; }; }
			table ip6 t { chain output { type nat hook output priority -100; ip6 daddr fd96::1 meta l4proto {tcp, udp} dnat to [2001:db8::1]:5353; }; }`},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command, err, out)
		}
	}
	for _, to := range []string{"10.96.0.1:53", "[fd96::1]:53", "192.0.2.1:7777"} {
		conn, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("hello")); err != nil {
			return err
		}
	}
	if conn, err := net.Dial("tcp", "10.96.0.1:53"); err == nil { // refused
		conn.Close()
	}
	ipv4, ipv6 := netip.MustParseAddrPort("10.96.0.1:53"), netip.MustParseAddrPort("[fd96::1]:53")
	all := []netip.AddrPort{ipv4, netip.MustParseAddrPort("192.0.2.1:5353"), ipv6, netip.MustParseAddrPort("[2001:db8::1]:5353")}
	for _, step := range []struct {
		stale []netip.AddrPort
		asked []netip.AddrPort
	}{
		{nil, all},
		{[]netip.AddrPort{ipv4}, all},
		{[]netip.AddrPort{ipv4, ipv6}, all[2:]},
		{[]netip.AddrPort{ipv4, ipv6}, nil},
	} {
		var asked []netip.AddrPort
		want := 0
		n, err := conntrack.DeleteStale(func(to, endpoint netip.AddrPort) bool {
			asked = append(asked, to, endpoint)
			if slices.Contains(step.stale, to) {
				want++
				return true
			}
			return false
		})
		if err != nil || n != want || !slices.Equal(asked, step.asked) {
			return fmt.Errorf("with stale %v: asked about %v, want %v; deleted %d, want %d: %w", step.stale, asked, step.asked, n, want, err)
		}
	}
	return nil
}
