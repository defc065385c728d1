package conntrack_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/model"
)

// newTable makes a host whose table has some of its most entries, and skips the test where connections cannot be
// tracked in a network namespace of its own.
func newTable(t *testing.T, most, some string) conntrack.Host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	h := newHost(t)
	for name, value := range map[string]string{"nf_conntrack_max": most, "nf_conntrack_count": some} {
		if err := os.WriteFile(filepath.Join(h.Sysctls, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// TestReserveHalfOfTheRoom: of connections of all protocols and both families as many are tracked as
// take up half of what is free; the same ones again take no more.
func TestReserveHalfOfTheRoom(t *testing.T) {
	h := newTable(t, "20", "7")
	var all []conntrack.Connection
	for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		for _, addr := range []string{"192.0.2.1", "2001:db8::1"} {
			for port := uint16(1000); port < 1003; port++ {
				source := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
				all = append(all, conntrack.Connection{Protocol: protocol, Source: source, Destination: netip.AddrPortFrom(source.Addr().Next(), 80)})
			}
		}
	}
	err := inNamespaces(func() error {
		for range 2 {
			n, err := h.Reserve(slices.Values(all), time.Minute)
			if n != 6 || err != nil {
				return fmt.Errorf("%d reserved: %w", n, err)
			}
			if n, err := tracked(); n != 6 || err != nil {
				return fmt.Errorf("%d tracked: %w", n, err)
			}
		}
		for i := range all {
			if n, err := h.Reserve(slices.Values(all[i:i+1]), time.Minute); n != 1 || err != nil {
				return fmt.Errorf("%v: %d reserved: %w", all[i], n, err)
			}
		}
		return nil
	})
	if errors.Is(err, conntrack.ErrNotLoaded) {
		t.Skip(err)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestReserveOthers: a connection whose source port another one has keeps none of those after it from being tracked.
func TestReserveOthers(t *testing.T) {
	h := newTable(t, "1000", "0")
	node, backend := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddrPort("192.0.2.2:80")
	var all []conntrack.Connection
	for port := uint16(1000); port < 1005; port++ {
		all = append(all, conntrack.Connection{Protocol: model.UDP, Source: netip.AddrPortFrom(node, port), Destination: backend})
	}
	// That of a client, by SNAT.
	client := netip.MustParseAddrPort("198.51.100.1:1001")
	other := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 60,
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: client.Addr().AsSlice(), SrcPort: client.Port(), DstIP: backend.Addr().AsSlice(), DstPort: backend.Port()},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: backend.Addr().AsSlice(), SrcPort: backend.Port(), DstIP: node.AsSlice(), DstPort: 1001}}
	err := inNamespaces(func() error {
		if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, other); err != nil {
			return err
		}
		if n, err := h.Reserve(slices.Values(all), time.Minute); n != 4 || !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%d reserved: %w", n, err)
		}
		if n, err := tracked(); n != 5 || err != nil {
			return fmt.Errorf("%d tracked: %w", n, err)
		}
		return nil
	})
	if errors.Is(err, conntrack.ErrNotLoaded) {
		t.Skip(err)
	}
	if err != nil {
		t.Error(err)
	}
}

// tracked returns how many connections this network namespace tracks.
func tracked() (n int, err error) {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return 0, err
		}
		n += len(list)
	}
	return n, nil
}

// TestReserveNotLoaded: without connection tracking there is nothing to reserve.
func TestReserveNotLoaded(t *testing.T) {
	h := conntrack.Host{Sysctls: t.TempDir()}
	if n, err := h.Reserve(slices.Values([]conntrack.Connection{{}}), time.Minute); n != 0 || !errors.Is(err, conntrack.ErrNotLoaded) {
		t.Errorf("%d reserved: %v", n, err)
	}
}
