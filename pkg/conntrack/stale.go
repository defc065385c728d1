package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DeleteStale deletes the UDP connections that netfilter translates from an address to an endpoint, if
// stale says so, and returns how many those were: their clients' next datagrams are new connections.
// kube-proxy does so (its CleanStaleEntries). A kernel that lists no connections has none to delete.
//
// The kernel hands over translated connections alone; only stale ones are kept in memory.
func DeleteStale(stale func(to, endpoint netip.AddrPort) bool) (deleted int, err error) {
	var errs []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list, err := listStale(family, stale)
		if err != nil {
			errs = append(errs, err)
		}
		for _, entry := range list {
			err := deleteTracked(family, entry)
			switch {
			case err == nil:
				deleted++
			case !errors.Is(err, unix.ENOENT): // it has ended
				errs = append(errs, err)
			}
		}
	}
	return deleted, errors.Join(errs...)
}

// listStale returns what identifies each stale connection of a family to the kernel. A list that has
// changed meanwhile may lack some: they are found by the next look.
func listStale(family uint8, stale func(to, endpoint netip.AddrPort) bool) (list [][]*nl.RtAttr, err error) {
	err = Each(family, DestinationTranslated, func(attrs []syscall.NetlinkRouteAttr) error {
		t, err := parseTranslation(attrs)
		if err == nil && t.udp && t.to != t.endpoint && stale(t.to, t.endpoint) {
			list = append(list, t.id)
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrNoList) && !errors.Is(err, nl.ErrDumpInterrupted) {
		return list, fmt.Errorf("conntrack: list translated connections: %w", err)
	}
	return list, nil
}

func deleteTracked(family uint8, id []*nl.RtAttr) error {
	r := request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, family)
	for _, a := range id {
		r.AddData(a)
	}
	if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("conntrack: delete a connection: %w", err)
	}
	return nil
}

// translation is a tracked connection whose destination is translated.
type translation struct {
	udp          bool
	to, endpoint netip.AddrPort // what the client sends to, and who answers
	id           []*nl.RtAttr   // by which the kernel knows it
}

func parseTranslation(attrs []syscall.NetlinkRouteAttr) (t translation, err error) {
	for _, a := range attrs {
		switch kind := a.Attr.Type & nl.NLA_TYPE_MASK; kind {
		case nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_REPLY:
			protocol, source, destination, err := parseTuple(a.Value)
			if err != nil {
				return t, err
			}
			if kind == nl.CTA_TUPLE_REPLY {
				t.endpoint = source
				continue
			}
			t.udp, t.to = protocol == unix.IPPROTO_UDP, destination
		case nl.CTA_ID, nl.CTA_ZONE:
		default:
			continue
		}
		// Its value is the receiver's, which is used again.
		t.id = append(t.id, nl.NewRtAttr(int(a.Attr.Type), append([]byte(nil), a.Value...)))
	}
	return t, nil
}

// parseTuple returns one direction of a connection; ports are zero where a protocol has none.
func parseTuple(value []byte) (protocol uint8, source, destination netip.AddrPort, err error) {
	var addrs [2]netip.Addr
	var ports [2]uint16
	attrs, err := nl.ParseRouteAttr(value)
	for _, outer := range attrs {
		inner, failed := nl.ParseRouteAttr(outer.Value)
		err = errors.Join(err, failed)
		for _, a := range inner {
			kind := a.Attr.Type & nl.NLA_TYPE_MASK
			switch outer.Attr.Type & nl.NLA_TYPE_MASK {
			case nl.CTA_TUPLE_IP:
				addr, _ := netip.AddrFromSlice(a.Value)
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					addrs[0] = addr
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					addrs[1] = addr
				}
			case nl.CTA_TUPLE_PROTO:
				switch {
				case kind == nl.CTA_PROTO_NUM && len(a.Value) >= 1:
					protocol = a.Value[0]
				case kind == nl.CTA_PROTO_SRC_PORT && len(a.Value) >= 2:
					ports[0] = binary.BigEndian.Uint16(a.Value)
				case kind == nl.CTA_PROTO_DST_PORT && len(a.Value) >= 2:
					ports[1] = binary.BigEndian.Uint16(a.Value)
				}
			}
		}
	}
	return protocol, netip.AddrPortFrom(addrs[0], ports[0]), netip.AddrPortFrom(addrs[1], ports[1]), err
}
