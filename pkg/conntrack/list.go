package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The bits of a connection's status (IPS_SRC_NAT and IPS_DST_NAT of
// linux/netfilter/nf_conntrack_common.h): one side sees another address or port than the other side has.
const (
	SourceTranslated      = 1 << 4
	DestinationTranslated = 1 << 5
)

// ErrNoList is of a kernel that does not tell which connections it tracks.
var ErrNoList = errors.New("the kernel does not list the connections that it tracks (nf_conntrack_netlink)")

// Each calls do with the attributes of each connection of a family (AF_INET, AF_INET6) that is tracked in the
// network namespace of the calling thread, or, unless status is 0, of each that has all of its bits. It ends at
// do's first error. None is kept in memory: there may be a million. The values are good until do returns.
//
// The error is [ErrNoList], or wraps [nl.ErrDumpInterrupted] where some may be missing, for the list has
// changed meanwhile.
func Each(family uint8, status uint32, do func([]syscall.NetlinkRouteAttr) error) error {
	r := request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, family)
	if status != 0 {
		r.AddData(nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, status)))
	}
	var failed error
	err := r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		var attrs []syscall.NetlinkRouteAttr
		if len(message) < nl.SizeofNfgenmsg {
			failed = fmt.Errorf("a message of %d bytes", len(message))
		} else if attrs, failed = nl.ParseRouteAttr(message[nl.SizeofNfgenmsg:]); failed == nil {
			failed = do(attrs)
		}
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	if errors.Is(err, unix.EINVAL) { // nobody serves the request
		return ErrNoList
	}
	return err
}

func request(operation, flags int, family uint8) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	return r
}
