package kubeproxy

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// generationSocket asks nf_tables for the generation of its ruleset, which package nftables
// has no call for.
type generationSocket struct{ *netlink.Conn }

// dialGeneration opens the socket in this network namespace.
func dialGeneration() (generationSocket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return generationSocket{}, fmt.Errorf("nftables: open a netlink socket: %w", err)
	}
	return generationSocket{conn}, nil
}

// nfgenmsg is what precedes the attributes of a message: family, version and resource.
var nfgenmsg = []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}

// read returns the generation, NFTA_GEN_ID.
func (s generationSocket) read() (uint32, error) {
	answers, err := s.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   nfgenmsg,
	})
	if err != nil {
		return 0, fmt.Errorf("read the generation: %w", err)
	}
	for _, a := range answers {
		if len(a.Data) < len(nfgenmsg) {
			continue
		}
		attributes, err := netlink.UnmarshalAttributes(a.Data[len(nfgenmsg):])
		if err != nil {
			return 0, fmt.Errorf("read the generation: %w", err)
		}
		for _, v := range attributes {
			if v.Type == unix.NFTA_GEN_ID && len(v.Data) == 4 {
				return binary.BigEndian.Uint32(v.Data), nil
			}
		}
	}
	return 0, errors.New("read the generation: the kernel's answer lacks it")
}
