package devicemap

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/tests/maptest"
)

func TestDeviceIsReadBack(t *testing.T) {
	m := New(maptest.New(t, maptest.Small))
	want := []Device{
		{ID: 1, Name: "eth0", Ifindex: 2, Reason: "default route", Addr4: netip.MustParseAddr("192.0.2.1"),
			Addr6: netip.MustParseAddr("2001:db8::1"), OwnQdisc: true, Root: 1, Tags: Tags{{Protocol: 0x88a8, ID: 100}, {Protocol: 0x8100, ID: 7}}},
		{ID: uint32(MaxDevices), Name: "wg0", Ifindex: 9, Reason: "overlay (wireguard)", NoEthernet: true},
	}
	for _, d := range want {
		if err := m.Put(d); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.List()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("devices %+v, %v\nwant    %+v", got, err, want)
	}
}

func TestDeviceIsFoundByItsIfindexOnly(t *testing.T) {
	m := New(maptest.New(t, maptest.Small))
	ids := func() map[uint32]uint32 {
		found := make(map[uint32]uint32)
		if err := bpfmap.Each(m.maps.BlDeviceId, func(ifindex, id *uint32) { found[*ifindex] = *id }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	for _, ifindex := range []int{2, 7} {
		if err := m.Put(Device{ID: 3, Name: "eth0", Ifindex: ifindex}); err != nil {
			t.Fatal(err)
		}
	}
	if got := ids(); len(got) != 1 || got[7] != 3 {
		t.Errorf("made again with another ifindex: %v, want 7: 3", got)
	}
	if err := m.Delete(Device{ID: 3, Name: "eth0", Ifindex: 7}); err != nil {
		t.Fatal(err)
	}
	if got := ids(); len(got) != 0 {
		t.Errorf("after the device left: %v", got)
	}
	if list, err := m.List(); err != nil || !slices.Equal(list, []Device{{ID: 3, Name: "eth0"}}) {
		t.Errorf("devices %+v, %v; want the ID kept for eth0", list, err)
	}
}

func TestDeviceWithoutIDIsRejected(t *testing.T) {
	m := New(maptest.New(t, maptest.Small))
	for _, id := range []uint32{0, uint32(MaxDevices) + 1} {
		err := m.Put(Device{ID: id, Name: "eth0", Ifindex: 2})
		if err == nil || !strings.Contains(err.Error(), "devices: ") {
			t.Errorf("ID %d: got %v, want what to do", id, err)
		}
	}
}

// TestIDsStandForDevices: no device gets an index that stands for something else.
func TestIDsStandForDevices(t *testing.T) {
	for _, other := range []bpf.SockBlDeviceLimit{
		bpf.SockBlDeviceLimitBL_DEVICE_ROUTED, bpf.SockBlDeviceLimitBL_DEVICE_HAIRPIN, bpf.SockBlDeviceLimitBL_DEVICE_MASQUERADE,
	} {
		if MaxDevices >= int(other) {
			t.Errorf("devices have the indexes 1 to %d, and %d is none", MaxDevices, other)
		}
	}
}
