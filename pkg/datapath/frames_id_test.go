package datapath

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestFramesWithoutID: VLANs for which no ID is left are not taken for entries that somebody has removed.
func TestFramesWithoutID(t *testing.T) {
	n := node()
	base := len(n.links)
	for i := range devicemap.MaxAddressed + 3 {
		index := base + i + 1
		n.links = append(n.links, &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("vlan%d", i), Index: index, ParentIndex: 2, NetNsID: -1, Flags: net.FlagUp, EncapType: "ether"}, VlanId: i + 1, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
		n.networks[index] = prefixes(fmt.Sprintf("100.64.%d.1/24", i))
	}
	m := maptest.New(t, maptest.Small)
	d := &Datapath{opts: Options{Devices: []string{DevicesAuto}}, maps: m, deviceMap: devicemap.New(m), state: map[int]*deviceState{}}
	devices, _ := d.plan(n, nil, nil, nil)
	if err := d.writeFrames(n.frames(devices)); err != nil {
		t.Fatal(err)
	}
	if changed, err := d.mendFrames(); changed || err != nil {
		t.Errorf("mended %t, %v", changed, err)
	}
}
