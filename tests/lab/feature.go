package lab

import (
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// VLANFeatures are those by which devices take tags off frames that come in and leave
// it to the receiver to put them on frames that leave.
var VLANFeatures = []string{"rx-vlan-hw-parse", "tx-vlan-hw-insert", "rx-vlan-stag-hw-parse", "tx-vlan-stag-hw-insert"}

// SetFeatures switches features of a device, by the names that the kernel has for them.
func (n *Namespace) SetFeatures(on bool, device string, names ...string) {
	n.t.Helper()
	n.must("set features of "+device, func() error { return SetFeatures(on, device, names...) })
}

// SetFeatures switches features of a device of the calling thread's network namespace.
func SetFeatures(on bool, device string, names ...string) error {
	family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		return err
	}
	const nested = unix.NLA_F_NESTED
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddData(&nl.Genlmsg{Command: unix.ETHTOOL_MSG_FEATURES_SET, Version: uint8(family.Version)})
	header := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_HEADER|nested, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_NAME, nl.ZeroTerminated(device))
	request.AddData(header)
	wanted := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|nested, nil)
	bits := wanted.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|nested, nil)
	for _, name := range names {
		bit := bits.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|nested, nil)
		bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(name))
		if on {
			bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_VALUE, nil)
		}
	}
	request.AddData(wanted)
	_, err = request.Execute(unix.NETLINK_GENERIC, 0)
	return err
}
