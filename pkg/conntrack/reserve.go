package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Connection is one from an address of this node, whose packets netfilter does not see.
type Connection struct {
	Protocol            model.Protocol
	Source, Destination netip.AddrPort
}

// Reserve has netfilter track connections for some time, a multiple of a second, so that its SNAT
// gives their source ports to no other connection with the same destination. It returns how many it
// has reserved: as many as take up half of the room that the table has left. One whose source port another
// connection has already stays without, and is in the error.
//
// Without connection tracking there is no SNAT, and the error is [ErrNotLoaded].
func (h Host) Reserve(connections iter.Seq[Connection], last time.Duration) (n int, err error) {
	room, err := h.room()
	if err != nil {
		return 0, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("reserve source ports: %w", err)
	}
	defer handle.Close()
	var taken error // of the first one
	for c := range connections {
		if n >= room/2 {
			break
		}
		entry := tracked(c, last)
		err := handle.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(entry.FamilyType), entry)
		if err != nil {
			err = fmt.Errorf("reserve source port %s of a connection to %s: %w", c.Source, c.Destination, err)
		}
		switch {
		case err == nil:
			n++
		case !errors.Is(err, unix.EEXIST):
			return n, err
		case taken == nil:
			taken = err
		}
	}
	return n, taken
}

// room returns how many more connections can be tracked.
func (h Host) room() (int, error) {
	limit, err := read(filepath.Join(h.Sysctls, "nf_conntrack_max"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, ErrNotLoaded
	}
	if err == nil && limit == 0 { // none
		return math.MaxInt, nil
	}
	count, errCount := read(filepath.Join(h.Sysctls, "nf_conntrack_count"))
	return max(limit-count, 0), errors.Join(err, errCount)
}

// tracked returns the entry of a connection.
func tracked(c Connection, last time.Duration) *netlink.ConntrackFlow {
	f := &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET6,
		Forward:    tuple(c.Protocol, c.Source, c.Destination),
		Reverse:    tuple(c.Protocol, c.Destination, c.Source),
		TimeOut:    uint32(last / time.Second),
	}
	if c.Source.Addr().Is4() {
		f.FamilyType = unix.AF_INET
	}
	if c.Protocol == model.TCP {
		f.ProtoInfo = &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED}
	}
	return f
}

func tuple(protocol model.Protocol, from, to netip.AddrPort) netlink.IPTuple {
	return netlink.IPTuple{
		Protocol: uint8(protocol),
		SrcIP:    from.Addr().AsSlice(), SrcPort: from.Port(),
		DstIP: to.Addr().AsSlice(), DstPort: to.Port(),
	}
}
