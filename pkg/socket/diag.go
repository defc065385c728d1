package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// established is the state of a connected socket, of UDP as well (enum in
// net/tcp_states.h).
const established = 1

// id is the kernel's struct inet_diag_sockid. It has the socket's cookie, so it never means
// another one that has the same addresses later.
type id struct {
	SourcePort, DestinationPort [2]byte
	Source, Destination         [16]byte // of IPv4 the first four bytes
	Interface                   uint32
	Cookie                      [2]uint32
}

// cookie returns what SO_COOKIE shows of the socket.
func (i *id) cookie() uint64 { return uint64(i.Cookie[1])<<32 | uint64(i.Cookie[0]) }

// request is struct inet_diag_req_v2.
type request struct {
	Family, Protocol, Ext, _ uint8
	States                   uint32
	ID                       id
}

// answer is the beginning of struct inet_diag_msg.
type answer struct {
	Family, State, Timer, Retrans uint8
	ID                            id
}

// Len and Serialize make it a part of a message.
func (r *request) Len() int { return binary.Size(r) }

func (r *request) Serialize() []byte {
	// What has a fixed size can always be encoded.
	b, _ := binary.Append(nil, binary.NativeEndian, r)
	return b
}

// connected is a connected socket.
type connected struct {
	family uint8 // AF_INET or AF_INET6
	id     id
}

// list returns the connected UDP sockets of a family in the calling thread's network
// namespace.
func list(family uint8) ([]connected, error) {
	var sockets []connected
	err := dump(&request{Family: family, Protocol: unix.IPPROTO_UDP, States: 1 << established}, func(c connected) {
		sockets = append(sockets, c)
	})
	if err != nil {
		return nil, fmt.Errorf("list UDP sockets: %w", err)
	}
	return sockets, nil
}

// dump calls fn for each socket of the calling thread's network namespace that is asked for.
func dump(asked *request, fn func(connected)) error {
	r := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	r.AddData(asked)
	var damaged error
	err := r.ExecuteIter(unix.NETLINK_SOCK_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(message []byte) bool {
		var c connected
		if c, damaged = parseAnswer(asked.Family, message); damaged != nil {
			return false
		}
		fn(c)
		return true
	})
	return errors.Join(err, damaged)
}

// parseAnswer reads a message of the list of a family's sockets.
func parseAnswer(family uint8, message []byte) (connected, error) {
	var a answer
	if _, err := binary.Decode(message, binary.NativeEndian, &a); err != nil {
		return connected{}, fmt.Errorf("a socket of %d bytes: %w", len(message), err)
	}
	return connected{family, a.ID}, nil
}

// destroy makes the kernel destroy a socket of the calling thread's network namespace: what its
// process waits for, or does with it next, fails. The error wraps ENOENT when it is gone or
// connected to something else.
func (c *connected) destroy() error {
	r := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	r.AddData(&request{Family: c.family, Protocol: unix.IPPROTO_UDP, ID: c.id})
	if _, err := r.Execute(unix.NETLINK_SOCK_DIAG, 0); err != nil {
		return fmt.Errorf("destroy the UDP socket from %s to %s: %w", c.socket().Local, c.socket().Peer, err)
	}
	return nil
}

// socket returns what the programs find the socket by.
func (c *connected) socket() bpf.UDPSocket {
	return bpf.UDPSocket{
		Local:  c.addrPort(c.id.Source, c.id.SourcePort),
		Peer:   c.addrPort(c.id.Destination, c.id.DestinationPort),
		Cookie: c.id.cookie(),
		Device: c.id.Interface,
	}
}

func (c *connected) addrPort(addr [16]byte, port [2]byte) netip.AddrPort {
	a := netip.AddrFrom16(addr).Unmap()
	if c.family == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(addr[:4]))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port[:]))
}
